// The heap of a process that runs for months and makes the same small things again and again: once it is warm, memory
// that was freed is used again without page faults.
#ifndef CKPTD_DAEMON_OS_HEAP_H_
#define CKPTD_DAEMON_OS_HEAP_H_

namespace ckptd {

// Before any thread. All threads share one heap, which keeps up to a few MiB of what it once had. (Heaps of their own
// would each have to become warm, and give pages back in between.)
void ShareHeap();

// When all that lives long is made: has memory ready for the moments in which more is alive than ever before.
void ReserveHeap();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_HEAP_H_
