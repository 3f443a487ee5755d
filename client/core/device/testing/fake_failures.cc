#include "client/core/device/testing/fake_failures.h"

#include <cstdlib>
#include <sstream>

namespace ckptd::fake {

Failures& Failures::Get() {
  static auto* failures = new Failures();
  return *failures;
}

Failures::Failures() {
  const char* text = getenv("FAKECUDA_FAIL");
  std::istringstream entries(text != nullptr ? text : "");
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::istringstream fields(entry);
    std::string call;
    std::string field;
    std::getline(fields, call, ':');
    uint64_t numbers[3] = {0, 0, 0};
    for (uint64_t& number : numbers) {
      if (std::getline(fields, field, ':')) number = strtoull(field.c_str(), nullptr, 10);
    }
    failures_.push_back({call, static_cast<int>(numbers[0]), numbers[1], numbers[2]});
  }
}

void Failures::Add(const std::string& call, int code, uint64_t after, uint64_t times) {
  std::lock_guard lock(mutex_);
  failures_.push_back({call, code, after, times});
}

void Failures::Clear() {
  std::lock_guard lock(mutex_);
  failures_.clear();
}

int Failures::Next(const char* call) {
  std::lock_guard lock(mutex_);
  for (Failure& failure : failures_) {
    if (failure.call != call) continue;
    uint64_t number = failure.seen++;
    if (number >= failure.after && (failure.times == 0 || number < failure.after + failure.times)) return failure.code;
  }
  return 0;
}

}  // namespace ckptd::fake
