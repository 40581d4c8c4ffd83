// The table of the set that this file is compiled for.
#include "vec.hpp"

#define RAYVEC_TEXT_OF(name) #name
#define RAYVEC_TEXT(name) RAYVEC_TEXT_OF(name)

namespace rayvec::RAYVEC_SET {

constinit const Kernels kernels = {
    .name = RAYVEC_TEXT(RAYVEC_SET),
    .lanes = LANES,
    .packed_size = packed_size,
    .pack_linear = pack_linear,
    .linear = linear,
    .gated_linear = gated_linear,
    .add_norm = add_norm,
    .embed = embed,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .mean_rows = mean_rows,
    .max_rows = max_rows,
    .fma_peak = fma_peak,
#if defined(RAYVEC_TILES)
    .tile_matmul = tile_matmul,
    .tile_peak = tile_peak,
    .tiles = &tile_kernels,
#else
    .tile_matmul = nullptr,
    .tile_peak = nullptr,
    .tiles = nullptr,
#endif
};

}  // namespace rayvec::RAYVEC_SET
