// The tile kernels of the set that this file is compiled for.
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

constinit const TileKernels tile_kernels = {
    .pack_tiles = pack_tiles,
    .to_tiles = to_tiles,
    .to_rows = to_rows,
    .linear_tiles = linear_tiles,
    .linear_heads = linear_heads,
    .linear_rows_scratch = linear_rows_scratch,
    .linear_rows = linear_rows,
    .ffn_scratch = ffn_scratch,
    .ffn = ffn,
    .norm_rows = norm_rows,
    .embed_tiles = embed_tiles,
    .prepare_heads = prepare_heads,
    .attend_scratch = attend_scratch,
    .attend_heads = attend_heads,
};

}  // namespace rayvec::RAYVEC_SET
