/* A part of the library that is preloaded into the processes of a run. It gives each thread of TensorFlow another seed.
 *
 * TensorFlow 2.21 numbers its requests with 64-bit random numbers, and a server refuses a number that is among its last
 * 100,000 ("The same RunGraph (Worker) request was received twice"). Each thread has its own generator with a seed of 32
 * bits from std::random_device, and each session.run is executed by a new thread. Equal seeds give equal numbers, so one
 * step in about 40,000 fails on a server that has received 100,000 requests.
 *
 * Process number i of n gets the seeds i, i + n, i + 2n and so on, each combined with a key that differs between runs.
 * No seed then occurs twice within 2^32 / n seeds of a process.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/random.h>

static uint32_t key, first;
static _Atomic uint32_t stride = 0, drawn = 0;

void parallax_distinct_seeds(uint32_t of_run, uint32_t process, uint32_t processes) {
    key = of_run;
    first = process;
    atomic_store(&stride, processes);
}

/* std::random_device::_M_getval() of libstdc++. dlsym(RTLD_NEXT) may not find the original, because Python loads
 * libstdc++ for its extension modules alone. */
unsigned int _ZNSt13random_device9_M_getvalEv(void *device) {
    (void)device;
    uint32_t step = atomic_load(&stride), random;
    if (step != 0) return key ^ (first + step * atomic_fetch_add(&drawn, 1));
    while (getrandom(&random, sizeof random, 0) != sizeof random) continue;
    return random;
}
