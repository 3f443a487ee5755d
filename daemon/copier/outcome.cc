#include "daemon/copier/outcome.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ckptd {

Outcome Refuse(const char* format, ...) {
  char text[sizeof(CopierAnswer::sentence)];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return {CopierOutcome::kRefused, text, DeviceFault::kNone};
}

Outcome DeviceFails(const char* what, const DeviceError& error) {
  bool whole = error.fault == DeviceFault::kRefused || error.fault == DeviceFault::kNoDriver;
  std::string sentence = std::string(what) + ": " + Sentence(error);
  return {whole ? CopierOutcome::kRefused : CopierOutcome::kDevice, std::move(sentence), error.fault};
}

Outcome FileFails(const char* what, int error) {
  char text[128];
  return Refuse("%s: %s", what, strerror_r(error, text, sizeof text));
}

}  // namespace ckptd
