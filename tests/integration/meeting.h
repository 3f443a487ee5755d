// Where the ranks of a job meet at each step, as real ones do in their collectives: none is more than a step ahead of
// another, whoever is stopped or slow. A file with a word for each rank, its step, which whoever comes first makes.
#ifndef CKPTD_TESTS_INTEGRATION_MEETING_H_
#define CKPTD_TESTS_INTEGRATION_MEETING_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

class Meeting {
 public:
  // No path: nobody to wait for. The file stays mapped until the process ends.
  Meeting(const std::string& path, uint32_t rank, uint32_t world) : rank_(rank), world_(path.empty() ? 0 : world) {
    if (path.empty()) return;
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const size_t bytes = world * sizeof(Word);
    const bool made = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0;
    void* memory = made ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) throw std::runtime_error("no place to meet at " + path);
    close(file);
    steps_ = static_cast<Word*>(memory);
  }

  // Returns when every rank has come to the step before.
  void At(uint64_t step) {
    if (world_ == 0) return;
    steps_[rank_].store(step);
    for (uint32_t rank = 0; rank < world_; ++rank) {
      while (steps_[rank].load() + 1 < step) std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free);
  const uint32_t rank_;
  const uint32_t world_;
  Word* steps_ = nullptr;
};

#endif  // CKPTD_TESTS_INTEGRATION_MEETING_H_
