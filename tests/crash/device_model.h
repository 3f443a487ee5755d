// The state of ckpt-device-trainer: words on the host device and a counter in host memory. One update is x <- a * x +
// c(step), so that the state of any step can be computed from scratch.
#ifndef CKPTD_TESTS_CRASH_DEVICE_MODEL_H_
#define CKPTD_TESTS_CRASH_DEVICE_MODEL_H_

#include <cuda.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void Must(CUresult result, const char* call);

class Model {
 public:
  struct Shape {
    uint64_t tensors;
    uint64_t words;    // of each
    uint64_t ballast;  // bytes behind them
    bool vmm;          // memory of cuMemCreate, which can be exported as a descriptor
  };
  explicit Model(const Shape& shape);

  // As a kernel.
  void Update(CUstream stream, uint64_t step);

  // Throws when the state is not the one of `step`.
  void Verify(uint64_t step) const;

  [[nodiscard]] uint64_t Digest() const;

  struct Place {
    std::string name;
    void* data;
    uint64_t bytes;
    bool device;
  };
  [[nodiscard]] std::vector<Place> Places();

 private:
  void Run();

  const uint64_t tensors_;
  const uint64_t words_;
  uint64_t* state_ = nullptr;
  uint64_t next_ = 0;
  uint64_t step_ = 0;  // in host memory, and lazy: it is copied by the trainer's process in a pull too
};

#endif  // CKPTD_TESTS_CRASH_DEVICE_MODEL_H_
