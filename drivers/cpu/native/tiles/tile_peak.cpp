// The most products of tiles that this instruction set does: operands in registers, nothing else.
#include "tiles/tiles.hpp"

namespace rayvec::RAYVEC_SET {

std::int64_t tile_peak(std::int64_t iterations, const Bf16* operands, float* sums) {
    enum : int { LEFT = 6, RIGHT = 7 };
    constexpr int SUMS = 6;  // tiles 0 to 5: enough that none waits for its last product
    const TileScope scope(full_tiles());
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    tile_zero<4>();
    tile_zero<5>();
    tile_load<LEFT>(operands, TILE_ROW_BYTES);
    tile_load<RIGHT>(operands, TILE_ROW_BYTES);
    for (std::int64_t n = 0; n < iterations; ++n) {
        tile_dot_bf16<0, LEFT, RIGHT>();
        tile_dot_bf16<1, LEFT, RIGHT>();
        tile_dot_bf16<2, LEFT, RIGHT>();
        tile_dot_bf16<3, LEFT, RIGHT>();
        tile_dot_bf16<4, LEFT, RIGHT>();
        tile_dot_bf16<5, LEFT, RIGHT>();
    }
    tile_store<0>(sums, TILE_ROW_BYTES);
    constexpr std::int64_t FLOPS = 2 * TILE_ROWS * (TILE_ROW_BYTES / 4) * (TILE_ROW_BYTES / 2);
    return iterations * SUMS * FLOPS;
}

}  // namespace rayvec::RAYVEC_SET
