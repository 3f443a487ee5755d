#include "client/src/slot_reader.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "client/core/copy/copy_crc.h"
#include "client/core/copy/crc32c.h"
#include "client/core/device/allocation.h"
#include "client/core/threads/cores.h"
#include "client/core/threads/sync.h"
#include "client/src/device_inlet.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr size_t kMostForHost = 4;     // threads; memory is full then
constexpr size_t kMostForDevices = 8;  // a bus is as fast as these can sum

}  // namespace

// One thread's part: takes chunk after chunk.
class SlotReaderWorker {
 public:
  explicit SlotReaderWorker(SlotReader& reader) : reader_(reader), slot_(reader.slot_) {}

  [[nodiscard]] bool Start() {
    return thread_.Start("ckpt-read", &SlotReaderWorker::Run, &SlotReaderWorker::Broke, this);
  }
  void Join() { thread_.Join(); }

  // In the calling thread.
  void Work() {
    try {
      ReadChunks();
    } catch (...) {
      Broke(this, Thrown());
    }
  }

  [[nodiscard]] int32_t rc() const { return rc_; }
  [[nodiscard]] const char* sentence() const { return sentence_; }

 private:
  static void Run(void* self) { static_cast<SlotReaderWorker*>(self)->ReadChunks(); }

  static void Broke(void* self, const char* why) noexcept {
    auto* worker = static_cast<SlotReaderWorker*>(self);
    worker->rc_ = -code::INTERNAL;
    snprintf(worker->sentence_, sizeof worker->sentence_, "snapshot: %s while it was read", why);
    worker->reader_.failed_.store(true);
  }

  void ReadChunks() {
    while (!reader_.failed_.load(std::memory_order_relaxed)) {
      size_t index = reader_.next_.fetch_add(1);
      if (index >= reader_.chunks_.size()) return;
      rc_ = ReadChunk(reader_.chunks_[index]);
      reader_.on_read_();
      if (rc_ == 0) continue;
      snprintf(sentence_, sizeof sentence_, "%s", LastSentence());
      reader_.failed_.store(true);
    }
  }

  int32_t ReadChunk(uint64_t chunk) {
    const std::vector<ckpt_box>& boxes = reader_.boxes_;
    uint64_t at = chunk * slot_.chunk_bytes;
    const uint64_t end = std::min(slot_.slot_bytes, at + slot_.chunk_bytes);
    size_t next = FirstBehind(at);
    uint32_t crc = 0;
    while (at < end) {
      const ckpt_box* box = next < boxes.size() ? &boxes[next] : nullptr;
      bool wanted = box != nullptr && box->offset <= at;
      uint64_t until = end;
      if (box != nullptr) until = std::min(end, wanted ? box->offset + box->bytes : box->offset);
      if (!wanted) {
        crc = Crc32c(crc, slot_.bytes + at, until - at);
      } else if (int32_t rc = ReadBox(next++, at, until, &crc)) {
        return rc;
      }
      at = until;
    }
    if (crc == slot_.crcs[chunk]) return 0;
    return Fail(code::CORRUPT, "snapshot: chunk %" PRIu64 " (bytes %" PRIu64 " to %" PRIu64 ") is damaged", chunk,
                chunk * slot_.chunk_bytes, end);
  }

  // The first box that reaches beyond `at`.
  [[nodiscard]] size_t FirstBehind(uint64_t at) const {
    const std::vector<ckpt_box>& boxes = reader_.boxes_;
    auto found = std::partition_point(boxes.begin(), boxes.end(),
                                      [&](const ckpt_box& box) { return box.offset + box.bytes <= at; });
    return static_cast<size_t>(found - boxes.begin());
  }

  int32_t ReadBox(size_t index, uint64_t begin, uint64_t end, uint32_t* crc) {
    const ckpt_box& box = reader_.boxes_[index];
    char* into = static_cast<char*>(box.destination) + (begin - box.offset);
    const std::shared_ptr<Lane>& lane = reader_.box_lanes_[index];
    if (lane == nullptr) {
      *crc = CopyCrc32c(*crc, into, slot_.bytes + begin, end - begin);
      return 0;
    }
    ContextScope scope(lane->device());
    DeviceError error = scope.error();
    auto to = reinterpret_cast<DeviceAddress>(into);
    for (uint64_t at = begin; at < end && error.ok();) {
      DeviceInlet& inlet = InletOf(lane);
      uint64_t bytes = end - at;
      char* room = nullptr;
      error = inlet.Room(&bytes, &room);
      if (!error.ok()) break;
      *crc = CopyCrc32c(*crc, room, slot_.bytes + at, bytes);
      error = inlet.Send(to + (at - begin), bytes);
      at += bytes;
    }
    return error.ok() ? 0 : DeviceFails(lane->ordinal(), error);
  }

  DeviceInlet& InletOf(const std::shared_ptr<Lane>& lane) {
    for (auto& inlet : inlets_) {
      if (inlet->lane() == lane) return *inlet;
    }
    inlets_.push_back(std::make_unique<DeviceInlet>(lane));
    return *inlets_.back();
  }

  SlotReader& reader_;
  const SlotChunks& slot_;
  std::vector<std::unique_ptr<DeviceInlet>> inlets_;
  Thread thread_;
  int32_t rc_ = 0;
  char sentence_[400] = {};
};

int32_t MapSlot(int fd, uint64_t bytes, SharedMapping* out) {
  uint64_t size = 0;
  const int error = FileBytes(fd, &size);
  if (error != 0 || size < bytes) {
    return Fail(code::CORRUPT, "snapshot: the slot file holds %" PRIu64 " of %" PRIu64 " bytes", size, bytes);
  }
  if (int failed = SharedMapping::Map(fd, bytes, Access::kRead, out)) {
    return Fail(code::INTERNAL, "snapshot: cannot be mapped: %s", strerror(failed));
  }
  return 0;
}

// Sorted by offset, without the empty ones; inside the slot and disjoint.
int32_t SlotReader::TakeBoxes(const ckpt_box* boxes, uint64_t count) {
  boxes_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const ckpt_box& box = boxes[i];
    if (box.offset > slot_.slot_bytes || box.bytes > slot_.slot_bytes - box.offset ||
        (box.bytes > 0 && box.destination == nullptr)) {
      return Fail(code::INVALID_ARGUMENT, "box %" PRIu64 " reaches beyond the slot, or has no destination", i);
    }
    if (box.bytes > 0) boxes_.push_back(box);
  }
  std::sort(boxes_.begin(), boxes_.end(), [](const ckpt_box& a, const ckpt_box& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < boxes_.size(); ++i) {
    if (boxes_[i - 1].offset + boxes_[i - 1].bytes > boxes_[i].offset) {
      return Fail(code::INVALID_ARGUMENT, "boxes overlap at byte %" PRIu64 " of the slot", boxes_[i].offset);
    }
  }
  return 0;
}

int32_t SlotReader::FindLanes() {
  box_lanes_.resize(boxes_.size());
  for (size_t i = 0; i < boxes_.size(); ++i) {
    if ((boxes_[i].flags & CKPT_DEVICE) == 0) continue;
    if (int32_t rc = lanes_.FindOf(boxes_[i].destination, &box_lanes_[i])) return rc;
    if (std::find(used_.begin(), used_.end(), box_lanes_[i]) == used_.end()) used_.push_back(box_lanes_[i]);
  }
  return 0;
}

// What the caller's streams still do with this memory comes first.
int32_t SlotReader::FollowCallers() {
  for (const auto& lane : used_) {
    ContextScope scope(lane->device());
    DeviceError error = scope.error().ok() ? lane->FollowCaller() : scope.error();
    if (!error.ok()) return DeviceFails(lane->ordinal(), error);
  }
  return 0;
}

int32_t SlotReader::AwaitLanes() {
  int32_t rc = 0;
  for (const auto& lane : used_) {
    ContextScope scope(lane->device());
    DeviceError error = scope.error();
    if (error.ok()) error = lane->MarkEnd();
    if (error.ok()) error = lane->AwaitEnd();
    if (!error.ok()) rc = DeviceFails(lane->ordinal(), error);
  }
  return rc;
}

void SlotReader::ListChunks() {
  for (const ckpt_box& box : boxes_) {
    uint64_t last = (box.offset + box.bytes - 1) / slot_.chunk_bytes;
    uint64_t first = box.offset / slot_.chunk_bytes;
    if (!chunks_.empty()) first = std::max(first, chunks_.back() + 1);
    for (; first <= last; ++first) chunks_.push_back(first);
  }
}

// The calling thread works too.
int32_t SlotReader::RunWorkers() {
  const size_t most = used_.empty() ? kMostForHost : kMostForDevices;
  const size_t count = std::max<size_t>(1, std::min({most, size_t{UsableCores()}, chunks_.size()}));
  std::vector<std::unique_ptr<SlotReaderWorker>> workers;
  for (size_t i = 0; i < count; ++i) workers.push_back(std::make_unique<SlotReaderWorker>(*this));
  for (size_t i = 1; i < count; ++i) {
    if (!workers[i]->Start()) break;  // fewer do it too
  }
  workers[0]->Work();
  int32_t rc = 0;
  for (auto& worker : workers) {
    worker->Join();
    if (rc == 0 && worker->rc() != 0) rc = Fail(-worker->rc(), "%s", worker->sentence());
  }
  return rc;
}

int32_t SlotReader::Read(const ckpt_box* boxes, uint64_t count) {
  if (int32_t rc = TakeBoxes(boxes, count)) return rc;
  if (int32_t rc = FindLanes()) return rc;
  if (int32_t rc = FollowCallers()) return rc;
  ListChunks();
  int32_t rc = RunWorkers();
  int32_t arrived = AwaitLanes();
  return rc != 0 ? rc : arrived;
}

int32_t SlotReader::Verify() {
  for (uint64_t chunk = 0; chunk < slot_.crcs.size(); ++chunk) chunks_.push_back(chunk);
  return RunWorkers();
}

}  // namespace ckptd
