// One pwrite or pread of this process moves half of what it was asked for, or a single byte: for programs linked with
// --wrap=pwrite,--wrap=pread. (strace can make a call say so, but then no byte was moved at all.)
#ifndef CKPTD_TESTS_SYSCALLS_SHORT_TRANSFER_H_
#define CKPTD_TESTS_SYSCALLS_SHORT_TRANSFER_H_

#include <cstdint>

namespace ckptd::syscalls {

// The `number`-th from now on, 1 is the next; 0: none. Half of it where that is whole blocks.
void ShortenTransfer(uint64_t number);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_SHORT_TRANSFER_H_
