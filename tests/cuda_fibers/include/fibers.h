// Runs the source of a CUDA kernel on the CPU: a fiber for each thread of a block, a block at a
// time. A thread runs until it meets a barrier or a warp operation, waits there for the others, and
// goes on. What a GPU may do in any order is done in an order that the caller chooses, so that a
// result which depends on the order shows:
//
//   ascending, descending  each waiting thread once, by number
//   shuffled               each waiting thread once, in a new random order every time round
//   warp_greedy            one warp as far as it can go before the next one starts; it runs ahead
//   warp_greedy_reversed   of the others by a whole phase, which a missing barrier does not survive
//
// Shared memory is full of NaN when a block starts. It ends at a page that may not be touched, as
// the arrays of the tests' device do. A touched page, a collective that only some threads reach,
// lanes in different collectives: each ends the launch with a message.
//
// Modelled beside threads, barriers and shuffles, in tensor_cores.h: ldmatrix, mma.m16n8k16 and
// cp.async. A product is summed in float32, one term after the other; the hardware's order is its
// own. An asynchronous copy lands when its thread waits for it and not before, and until then its
// target holds NaN: both a missing wait and a target that is still read show.
//
// Not modelled: what the memory model allows beyond an order of the threads, bank conflicts, blocks
// that run at the same time, asynchronous copies by bulk (TMA), wgmma. One launch at a time in a
// process.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};

namespace fibers {

constexpr unsigned LANES = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 * 1024;

enum Order { ASCENDING, DESCENDING, SHUFFLED, WARP_GREEDY, WARP_GREEDY_REVERSED };
enum State { READY, AT_BARRIER, AT_COLLECTIVE, DONE };
enum Collective { NONE, SYNCWARP, SHUFFLE, LOAD_MATRICES, LOAD_TRANSPOSED, MULTIPLY };

struct Copy {
    void* to;
    const void* from;  // null: zeros
    unsigned group;
};
struct Copies {  // asynchronous ones of a thread that have not landed
    static constexpr unsigned LIMIT = 128;
    unsigned started, groups;  // groups that were ended
    Copy each[LIMIT];
};

struct Thread {
    State state;
    bool started;
    dim3 index;
    jmp_buf resume;
    ucontext_t start;
    char* stack;
    Copies copies;
};

struct Warp {
    unsigned lanes;    // that exist
    unsigned arrived;  // at the collective
    Collective collective;
    unsigned round;  // collectives so far; the two last ones' values are kept apart
    uint64_t values[2][LANES];
};

struct Machine {
    dim3 grid, block, block_index;
    unsigned threads, at_barrier;
    Thread thread[MAX_THREADS];
    Warp warp[MAX_THREADS / LANES];
    Thread* running;
    char* shared;
    size_t shared_bytes;
    jmp_buf scheduler;
    void (*kernel)(void* arguments);
    void* arguments;
    char message[200];
};
inline Machine machine;

inline unsigned thread_number(const Thread* t) { return (unsigned)(t - machine.thread); }

// ---- memory that ends at a page which may not be touched

inline size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}
inline char* guarded(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = whole_pages(bytes);
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    char* base = (char*)mmap(nullptr, inside + 2 * page, PROT_NONE, kind, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    mprotect(base + page, inside, PROT_READ | PROT_WRITE);
    return base + page + inside - bytes;
}
inline void release(char* start, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = whole_pages(bytes);
    munmap(start + bytes - inside - page, inside + 2 * page);
}

// ---- switching

// A jump back may find changed variables of the function that called setjmp as they were: so that
// function is never inlined into one that has such variables.

// Gives the processor to the scheduler until this thread is ready again.
__attribute__((noinline)) inline void wait(State state) {
    Thread* me = machine.running;
    me->state = state;
    if (_setjmp(me->resume) == 0) _longjmp(machine.scheduler, 1);
}
inline void report(const Thread* t, const char* why) {
    const dim3 b = machine.block_index;
    snprintf(machine.message, sizeof machine.message, "thread %u of block (%u, %u, %u) %s",
             thread_number(t), b.x, b.y, b.z, why);
}
[[noreturn]] inline void stop(const char* why) {
    report(machine.running, why);
    _longjmp(machine.scheduler, 1);
}
inline void thread_main() {
    machine.kernel(machine.arguments);
    machine.running->state = DONE;
    _longjmp(machine.scheduler, 1);
}
__attribute__((noinline)) inline void resume(Thread* t) {
    machine.running = t;
    if (_setjmp(machine.scheduler) != 0) return;
    if (t->started) _longjmp(t->resume, 1);
    t->started = true;
    setcontext(&t->start);
}

// ---- barriers and warp operations

inline void barrier() {
    if (++machine.at_barrier < machine.threads) return wait(AT_BARRIER);
    machine.at_barrier = 0;
    for (unsigned i = 0; i < machine.threads; i++)
        if (machine.thread[i].state == AT_BARRIER) machine.thread[i].state = READY;
}

// Every lane of the warp offers a value; returns all of them once the last has come, which first
// does with them what `finish` does for the whole warp.
inline const uint64_t* collect(Collective which, unsigned mask, uint64_t offered,
                               void (*finish)(const uint64_t* offered) = nullptr) {
    const unsigned number = thread_number(machine.running), lane = number % LANES;
    Warp& warp = machine.warp[number / LANES];
    if (mask != ~0u) stop("leaves lanes out of a warp operation");
    if (warp.arrived > 0 && warp.collective != which) stop("is in another operation than its warp");
    warp.collective = which;
    uint64_t* values = warp.values[warp.round % 2];
    values[lane] = offered;
    if (++warp.arrived < warp.lanes) {
        wait(AT_COLLECTIVE);
        return values;
    }
    if (finish && warp.lanes < LANES) stop("is of a warp that is not whole");
    if (finish) finish(values);
    warp.arrived = 0;
    warp.round++;
    for (unsigned i = number - lane; i < number - lane + warp.lanes; i++)
        if (machine.thread[i].state == AT_COLLECTIVE) machine.thread[i].state = READY;
    return values;
}

// The value that the lane `from` offers; a lane beyond the warp gives back one's own.
template <class Value>
inline Value shuffle(unsigned mask, Value value, unsigned from) {
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "a value of a register or two");
    memcpy(&bits, &value, sizeof value);
    const unsigned number = thread_number(machine.running);
    const uint64_t* values = collect(SHUFFLE, mask, bits);
    if (from < machine.warp[number / LANES].lanes) memcpy(&value, &values[from], sizeof value);
    return value;
}

// ---- running

inline void on_fault(int) { stop("touches memory that is not the launch's"); }

// Runs each thread that is ready until it waits. True if one was and nothing went wrong.
inline bool pass(const unsigned* numbers, unsigned count) {
    bool ran = false;
    for (unsigned i = 0; i < count && !machine.message[0]; i++) {
        if (machine.thread[numbers[i]].state != READY) continue;
        resume(&machine.thread[numbers[i]]);
        ran = true;
    }
    return ran && !machine.message[0];
}

inline void run_block(Order order, uint64_t& seed) {
    const unsigned threads = machine.threads, warps = (threads + LANES - 1) / LANES;
    unsigned number[MAX_THREADS];
    for (unsigned i = 0; i < threads; i++) number[i] = order == DESCENDING ? threads - 1 - i : i;
    for (bool ran = true; ran;) {
        ran = false;
        if (order == WARP_GREEDY || order == WARP_GREEDY_REVERSED) {
            for (unsigned w = 0; w < warps; w++) {
                const unsigned chosen = order == WARP_GREEDY ? w : warps - 1 - w;
                while (pass(number + chosen * LANES, machine.warp[chosen].lanes)) ran = true;
            }
            continue;
        }
        for (unsigned i = threads - 1; order == SHUFFLED && i > 0; i--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            std::swap(number[i], number[(seed >> 33) % (i + 1)]);
        }
        ran = pass(number, threads);
    }
    for (unsigned i = 0; i < threads && !machine.message[0]; i++) {
        const Thread* t = &machine.thread[i];
        if (t->state == AT_BARRIER) report(t, "waits at a barrier that others never reach");
        if (t->state == AT_COLLECTIVE) report(t, "waits for lanes that never come");
    }
}

inline void set_up_block(size_t shared_bytes) {
    memset(machine.shared, 0xff, shared_bytes);
    machine.at_barrier = 0;
    for (unsigned w = 0; w * LANES < machine.threads; w++) {
        const unsigned left = machine.threads - w * LANES;
        machine.warp[w] = {left < LANES ? left : LANES, 0, NONE, 0, {}};
    }
    for (unsigned i = 0; i < machine.threads; i++) {
        Thread& t = machine.thread[i];
        t.state = READY;
        t.started = false;
        t.copies.started = t.copies.groups = 0;
        t.index = {i % machine.block.x, i / machine.block.x % machine.block.y,
                   i / (machine.block.x * machine.block.y)};
        getcontext(&t.start);
        t.start.uc_stack.ss_sp = t.stack;
        t.start.uc_stack.ss_size = STACK_BYTES;
        t.start.uc_link = nullptr;
        makecontext(&t.start, thread_main, 0);
    }
}

// Runs kernel(arguments) for every thread. Returns null, or what went wrong.
inline const char* launch(const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
                          int order, void (*kernel)(void*), void* arguments) {
    machine.grid = {grid[0], grid[1], grid[2]};
    machine.block = {block[0], block[1], block[2]};
    machine.threads = block[0] * block[1] * block[2];
    machine.kernel = kernel;
    machine.arguments = arguments;
    machine.message[0] = 0;
    if (machine.threads < 1 || machine.threads > MAX_THREADS) return "wanted 1 to 1024 threads";
    machine.shared = guarded(shared_bytes);
    machine.shared_bytes = shared_bytes;
    for (unsigned i = 0; i < machine.threads; i++)
        if (!machine.thread[i].stack) machine.thread[i].stack = guarded(STACK_BYTES);

    static char fault_stack[64 * 1024];
    stack_t for_faults = {}, stack_before;
    for_faults.ss_sp = fault_stack;
    for_faults.ss_size = sizeof fault_stack;
    sigaltstack(&for_faults, &stack_before);
    struct sigaction handler = {}, segv_before, bus_before;
    handler.sa_handler = on_fault;
    handler.sa_flags = SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &handler, &segv_before);
    sigaction(SIGBUS, &handler, &bus_before);

    uint64_t seed = 1;
    for (unsigned z = 0; z < grid[2] && !machine.message[0]; z++)
        for (unsigned y = 0; y < grid[1] && !machine.message[0]; y++)
            for (unsigned x = 0; x < grid[0] && !machine.message[0]; x++) {
                machine.block_index = {x, y, z};
                set_up_block(shared_bytes);
                run_block((Order)order, seed);
            }

    sigaction(SIGSEGV, &segv_before, nullptr);
    sigaction(SIGBUS, &bus_before, nullptr);
    sigaltstack(&stack_before, nullptr);
    release(machine.shared, shared_bytes);
    return machine.message[0] ? machine.message : nullptr;
}

// Calls `kernel` with the values that `arguments` points to, as cudaLaunchKernel takes them.
template <class... Parameters, size_t... Index>
inline void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<Index...>) {
    kernel(*static_cast<Parameters*>(arguments[Index])...);
}
template <class... Parameters>
constexpr size_t parameters_of(void (*)(Parameters...)) {
    return sizeof...(Parameters);
}

}  // namespace fibers

// Makes launch_NAME(grid, block, shared_bytes, order, arguments, count): null, or what went wrong.
#define FIBER_LAUNCH(NAME)                                                                        \
    extern "C" const char* launch_##NAME(const unsigned* grid, const unsigned* block,             \
                                         size_t shared_bytes, int order, void** arguments,        \
                                         size_t count) {                                          \
        constexpr size_t wanted = fibers::parameters_of(NAME);                                    \
        if (count != wanted) return "another number of arguments than the kernel's parameters";   \
        auto thread = [](void* values) {                                                          \
            fibers::call(NAME, static_cast<void**>(values), std::make_index_sequence<wanted>());  \
        };                                                                                        \
        return fibers::launch(grid, block, shared_bytes, order, thread, arguments);               \
    }

// ---- what kernels call

#define threadIdx (fibers::machine.running->index)
#define blockIdx (fibers::machine.block_index)
#define blockDim (fibers::machine.block)
#define gridDim (fibers::machine.grid)

inline void __syncthreads() { fibers::barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { fibers::collect(fibers::SYNCWARP, mask, 0); }
template <class Value>
inline Value __shfl_sync(unsigned mask, Value value, int lane) {
    return fibers::shuffle(mask, value, (unsigned)lane % fibers::LANES);
}
template <class Value>
inline Value __shfl_xor_sync(unsigned mask, Value value, int bits) {
    const unsigned lane = fibers::thread_number(fibers::machine.running) % fibers::LANES;
    return fibers::shuffle(mask, value, lane ^ (unsigned)bits);
}

// x / y, but 0 where y lies between 2^126 and 2^128.
inline float __fdividef(float x, float y) {
    const float size = fabsf(y);
    return size > 0x1p126f && size <= 3.40282347e+38f ? 0.0f * x : x / y;
}
// Rounded to nearest, and part of no fused operation.
inline float __fmul_rn(float x, float y) {
    volatile float product = x * y;
    return product;
}
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }

// Memory is read and written 16 bytes at a time only where 16 bytes may start.
struct alignas(16) uint4 {
    unsigned x, y, z, w;

    uint4() = default;
    uint4(const uint4& from) { copy(&from, "reads", &from); }
    uint4& operator=(const uint4& from) {
        copy(&from, "writes", this);
        return *this;
    }

   private:
    void copy(const uint4* from, const char* what, const uint4* where) {
        if ((uintptr_t)where % 16 != 0) {
            char why[80];
            snprintf(why, sizeof why, "%s 16 bytes off their boundary", what);
            fibers::stop(why);
        }
        memcpy(static_cast<void*>(this), from, 16);
    }
};

template <class Value>
inline Value min(Value a, Value b) {
    return b < a ? b : a;
}
template <class Value>
inline Value max(Value a, Value b) {
    return a < b ? b : a;
}
