// Preloaded into the trainers of the matrix: the copy thread of libckpt comes as late as its contract allows.
//
// Real tensors are large and their copy runs beside the next step; those of the tests are copied in a microsecond, and
// a tensor that is wrongly taken for lazy would never be caught. So once `late_copy(1)` was called, the first pwritev
// writes a few bytes only (a short write, as the system may do), and every later one waits for `late_copy(0)`: a kill
// before that finds a capture that has begun and is not complete.
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

ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  ssize_t (*real)(int, const struct iovec*, int, off_t) = dlsym(RTLD_NEXT, "pwritev");
  struct iovec first = parts[0];
  pthread_mutex_lock(&mutex);
  int partly = state == kArmed && first.iov_len > 1;
  if (partly) state = kClosed;
  while (!partly && state != kOpen) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  if (partly) {
    first.iov_len /= 2;
    return real(fd, &first, 1, offset);
  }
  return real(fd, parts, count, offset);
}
