// Preloaded into the trainers of the matrix: the copy thread of libckpt comes as late as its contract allows.
//
// Real tensors are large and their copy runs beside the next step; those of the tests are copied in a microsecond, and
// a tensor that is wrongly taken for lazy would never be caught. So once `late_copy(1)` was called, the first call that
// copies moves a few bytes only (a short one, as the system may do), and every later one waits for `late_copy(0)`: a
// kill before that finds a capture that has begun and is not complete. The calls are the two by which libckpt copies
// host memory: process_vm_readv, and pwritev where the first is not to be had.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/uio.h>

enum { kOpen, kArmed, kClosed };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int state = kOpen;

void late_copy(int late) {
  pthread_mutex_lock(&mutex);
  state = late ? kArmed : kOpen;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

// How many of `bytes`, the length of the first part, the caller may copy now; 0: all that it was asked for.
static size_t may_copy(size_t bytes) {
  pthread_mutex_lock(&mutex);
  int partly = state == kArmed && bytes > 1;
  if (partly) state = kClosed;
  while (!partly && state != kOpen) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  return partly ? bytes / 2 : 0;
}

ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  ssize_t (*real)(int, const struct iovec*, int, off_t) = dlsym(RTLD_NEXT, "pwritev");
  struct iovec first = {parts[0].iov_base, may_copy(parts[0].iov_len)};
  return first.iov_len ? real(fd, &first, 1, offset) : real(fd, parts, count, offset);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec* into, unsigned long into_count, const struct iovec* from,
                         unsigned long from_count, unsigned long flags) {
  ssize_t (*real)(pid_t, const struct iovec*, unsigned long, const struct iovec*, unsigned long, unsigned long) =
      dlsym(RTLD_NEXT, "process_vm_readv");
  struct iovec first = {from[0].iov_base, may_copy(from[0].iov_len)};
  if (first.iov_len) return real(pid, into, into_count, &first, 1, flags);
  return real(pid, into, into_count, from, from_count, flags);
}
