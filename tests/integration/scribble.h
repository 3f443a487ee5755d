// What a stray pointer of a trainer can do: all memory that it shares with the agent and may write, mapped by the test.
#ifndef CKPTD_TESTS_INTEGRATION_SCRIBBLE_H_
#define CKPTD_TESTS_INTEGRATION_SCRIBBLE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "proto/local/bell.h"

namespace ckptd::harness {

// The files that `pid` holds open and may write whose name contains `part`, mapped: "ckptd-bell", "/slot-". They stay
// when the process ends.
class SharedMemory {
 public:
  struct Map {
    char* memory;
    size_t size;
  };
  SharedMemory(pid_t pid, const std::string& part);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  [[nodiscard]] const std::vector<Map>& maps() const { return maps_; }

 private:
  std::vector<Map> maps_;
};

// Writes random words over random places of the memory as long as it lives.
class Scribbler {
 public:
  Scribbler(const SharedMemory& memory, uint64_t seed);
  ~Scribbler();
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;

 private:
  void Work(uint64_t seed);

  const SharedMemory& memory_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// The words of a trainer's only bell.
class BellWords {
 public:
  explicit BellWords(pid_t pid);
  [[nodiscard]] bool found() const { return head_ != nullptr; }
  // The completed fill with the highest epoch; null: there is none.
  [[nodiscard]] BellSlot* NewestComplete() const;
  // The slot that the agent has lent and no save has used; null: there is none.
  [[nodiscard]] BellSlot* Lent() const;
  // Of this slot: its chunks, then the check.
  [[nodiscard]] std::atomic<uint64_t>* Chunks(const BellSlot* slot) const;

 private:
  [[nodiscard]] BellSlot* slots() const;

  SharedMemory memory_;
  BellHead* head_ = nullptr;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_SCRIBBLE_H_
