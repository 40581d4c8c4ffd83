// What this processor and its operating system let a program use.
#pragma once

namespace rayvec {

bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, BW, VL and DQ, and all of has_avx2
bool has_avx512_bf16();  // and all of has_avx512
bool has_amx_bf16();     // and all of has_avx512_bf16; asks the system for the tiles, once a process

}  // namespace rayvec
