// What libFuzzer calls. Linked into the fuzzers, not into the programs that replay.
#include "tests/fuzz/caps.h"

extern "C" {

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::RunCapped({data, size});
  return 0;
}

// One mutation in eight stays broken: checksums must be looked at, too.
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0) return size;
  std::vector<uint8_t> input(data, data + size);
  ckptd::fuzz::Repair(input);
  if (input.size() > max_size) return size;
  std::memcpy(data, input.data(), input.size());
  return input.size();
}

}  // extern "C"
