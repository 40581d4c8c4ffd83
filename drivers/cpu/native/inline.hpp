// How small functions of the kernels are declared: inlined always, so that none is left as a
// symbol, and so that vectors pass in registers.
#pragma once

#define RAYVEC_INLINE [[gnu::always_inline]] static inline
#define RAYVEC_MEMBER [[gnu::always_inline]] inline  // of a class
