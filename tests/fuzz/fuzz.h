// A fuzz target: one file TARGET.cc that defines kAllowed, Run and, where its format has checksums or lengths, Repair.
//
// The asan preset (clang) makes a libFuzzer program of it; every other preset a program that runs the inputs of
// corpus/TARGET and no others. Both hold each input to the same caps (caps.cc): heap in proportion to its size, and two
// seconds of CPU time. tests/fuzz/run runs them.
#ifndef CKPTD_TESTS_FUZZ_FUZZ_H_
#define CKPTD_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckptd::fuzz {

using Input = std::span<const uint8_t>;

// What one input may have on the heap at any one time: `bytes` + `per_byte` * its size.
struct Allowed {
  size_t bytes;
  size_t per_byte;
};
extern const Allowed kAllowed;  // the target's

// Aborts, as does the code under test when it breaks a check.
void Run(Input input);

// Sets what must agree with the rest of the input, so that a mutation of it gets past the first check.
void Repair(std::vector<uint8_t>& input);

[[noreturn]] inline void Fail(const char* file, int line, const char* what) {
  (void)std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
  std::abort();
}
#define FUZZ_CHECK(condition) ((condition) ? void() : ::ckptd::fuzz::Fail(__FILE__, __LINE__, #condition))

// While it lives the heap is not counted: for a library that is not ours to judge.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

inline std::string_view TextOf(Input input) { return {reinterpret_cast<const char*>(input.data()), input.size()}; }

// Values from the front of an input; zeros behind its end.
class Reader {
 public:
  explicit Reader(Input input) : rest_(input) {}

  template <typename Number>
  Number Take() {
    Number number{};
    Fill(&number, sizeof(number));
    return number;
  }
  // A struct of plain numbers.
  void Fill(void* into, size_t bytes) {
    const size_t have = bytes < rest_.size() ? bytes : rest_.size();
    std::memset(into, 0, bytes);
    if (have > 0) std::memcpy(into, rest_.data(), have);
    rest_ = rest_.subspan(have);
  }
  // At most `bytes`.
  Input Bytes(size_t bytes) {
    const Input taken = rest_.first(bytes < rest_.size() ? bytes : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  Input rest_;
};

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_FUZZ_H_
