// Numbers and sentences of failures. A call that fails leaves its sentence in a buffer of the calling thread.
#ifndef CKPTD_CLIENT_SRC_FAILURE_H_
#define CKPTD_CLIENT_SRC_FAILURE_H_

#include <cstdint>

namespace ckptd {

// The rows of errors.def by name, positive: ckpt_status is the negative.
namespace code {
enum : int32_t {
  OK = 0,
#define CKPTD_ERROR(name, number, absl_code, exit_code, python, next_step) name = number,
#include "proto/local/errors.def"
#undef CKPTD_ERROR
};
}  // namespace code

// Keeps the sentence for LastSentence() and returns -number.
[[gnu::format(printf, 2, 3)]] int32_t Fail(int32_t number, const char* format, ...);

int32_t FailClosed();  // CANCELLED

[[nodiscard]] const char* LastSentence();                // of this thread; never null
[[nodiscard]] const char* CodeName(int32_t number);      // "REGION_FULL"; never null
[[nodiscard]] const char* CodeNextStep(int32_t number);  // what to do about it; never null

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_FAILURE_H_
