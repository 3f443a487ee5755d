#include "client/src/failure.h"

#include <cstdarg>
#include <cstdio>

namespace ckptd {
namespace {

// A plain array: no allocation on the error path, no destructor at thread exit.
thread_local char sentence[1200] = "";

}  // namespace

int32_t Fail(int32_t number, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  return -number;
}

int32_t FailClosed() { return Fail(code::CANCELLED, "the handle was closed"); }

const char* LastSentence() { return sentence; }

const char* CodeName(int32_t number) {
  switch (number) {
#define CKPTD_ERROR(name, number, absl_code, exit_code, python, next_step) \
  case code::name:                                                         \
    return #name;
#include "proto/local/errors.def"
#undef CKPTD_ERROR
    default:
      return number == 0 ? "OK" : "UNKNOWN";
  }
}

const char* CodeNextStep(int32_t number) {
  switch (number) {
#define CKPTD_ERROR(name, number, absl_code, exit_code, python, next_step) \
  case code::name:                                                         \
    return next_step;
#include "proto/local/errors.def"
#undef CKPTD_ERROR
    default:
      return "";
  }
}

}  // namespace ckptd
