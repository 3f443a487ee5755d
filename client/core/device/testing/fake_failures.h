// Which calls of the host device fail: see fake_cuda.h.
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_FAILURES_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_FAILURES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace ckptd::fake {

class Failures {
 public:
  static Failures& Get();

  void Add(const std::string& call, int code, uint64_t after, uint64_t times);
  void Clear();

  // The CUresult of this call; 0: it goes on.
  int Next(const char* call);

 private:
  struct Failure {
    std::string call;
    int code = 0;
    uint64_t after = 0;
    uint64_t times = 0;
    uint64_t seen = 0;
  };
  Failures();

  std::mutex mutex_;
  std::vector<Failure> failures_;
};

}  // namespace ckptd::fake

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_FAILURES_H_
