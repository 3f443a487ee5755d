#include "tests/integration/scribble.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

namespace ckptd::harness {

SharedMemory::SharedMemory(pid_t pid, const std::string& part) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.find(part) == target.npos) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || fstat(fd, &info) != 0 || info.st_size == 0) continue;  // read-only ones
    void* memory = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) maps_.push_back({static_cast<char*>(memory), static_cast<size_t>(info.st_size)});
    close(fd);
  }
}

SharedMemory::~SharedMemory() {
  for (const auto& [memory, size] : maps_) munmap(memory, size);
}

Scribbler::Scribbler(const SharedMemory& memory, uint64_t seed) : memory_(memory) {
  thread_ = std::thread([this, seed] { Work(seed); });
}

Scribbler::~Scribbler() {
  stop_ = true;
  thread_.join();
}

void Scribbler::Work(uint64_t seed) {
  while (!stop_) {
    for (const auto& [memory, size] : memory_.maps()) {
      seed = seed * 6364136223846793005 + 1442695040888963407;
      // Mostly the first page: heads and words stand there.
      const size_t within = seed >> 60 != 0 ? std::min<size_t>(size, 4096) : size;
      const size_t at = (seed >> 16) % (within / 8) * 8;
      const uint64_t word = seed >> 61 == 0 ? seed >> 40 : seed;  // small numbers look like slots and states
      std::memcpy(memory + at, &word, sizeof word);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

BellWords::BellWords(pid_t pid) : memory_(pid, "ckptd-bell") {
  if (!memory_.maps().empty()) head_ = reinterpret_cast<BellHead*>(memory_.maps().front().memory);
}

BellSlot* BellWords::slots() const {
  return reinterpret_cast<BellSlot*>(reinterpret_cast<char*>(head_) + head_->slots_offset);
}

BellSlot* BellWords::NewestComplete() const {
  BellSlot* newest = nullptr;
  for (BellSlot* slot = slots(); slot != slots() + head_->slot_count; ++slot) {
    const bool complete = CaptureStateOf(slot->word) == CaptureState::kComplete;
    if (complete && (newest == nullptr || slot->word > newest->word)) newest = slot;
  }
  return newest;
}

BellSlot* BellWords::Lent() const {
  for (BellSlot* slot = slots(); slot != slots() + head_->slot_count; ++slot) {
    if (CaptureStateOf(slot->word) == CaptureState::kOpen && slot->step == 0) return slot;
  }
  return nullptr;
}

std::atomic<uint64_t>* BellWords::Chunks(const BellSlot* slot) const {
  auto* all = reinterpret_cast<std::atomic<uint64_t>*>(reinterpret_cast<char*>(head_) + head_->chunks_offset);
  return all + static_cast<uint64_t>(slot - slots()) * BellRow(head_->chunk_count);
}

}  // namespace ckptd::harness
