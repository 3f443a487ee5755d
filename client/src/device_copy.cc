// Three passes over the slot. First every copy of every GPU is enqueued on its lane's stream, in pieces of at most
// 64 MiB, with a mark behind each stretch: then the gate can hold a stream back by an event, and training does not wait
// for bytes. Then host memory is copied. Then, one after the other, the marks are waited for, and what arrived is
// summed by several threads and published, chunk by chunk.
#include "client/src/device_copy.h"

#include <algorithm>
#include <optional>

#include "client/core/copy/capture_word.h"
#include "client/core/copy/crc32c.h"
#include "client/core/copy/fill_check.h"
#include "client/core/threads/slot_sums.h"
#include "client/src/failure.h"
#include "client/src/piece_copier.h"
#include "client/src/state.h"

namespace ckptd {
namespace {

constexpr uint64_t kHostBlock = 64 << 20;
constexpr uint64_t kDigestBlock = 2 << 20;
constexpr size_t kDigestBlocks = 16;

class DeviceCopy {
 public:
  explicit DeviceCopy(Capture& capture)
      : capture_(capture),
        lanes_(capture.registration->devices.lanes),
        slot_(capture.file->mapping.data()),
        slot_bytes_(capture.attachment->ready().slot_bytes),
        chunk_bytes_(capture.attachment->ready().chunk_bytes),
        stretch_bytes_(StretchBytes(slot_bytes_, chunk_bytes_)),
        touched_(lanes_.size()) {}

  void Enqueue() {
    for (const Piece& piece : capture_.registration->pieces) {
      if (!ok() || Stopped()) break;
      EnqueuePiece(piece);
    }
    OnEveryLane([](Lane& lane) { return lane.MarkEnd(); });
  }

  void CopyHostMemory() {
    if (!ok()) return;
    PieceCopier copier(capture_.registration->pieces, capture_.file->fd.get(), slot_);
    for (uint64_t at = 0; at < slot_bytes_ && !Stopped();) {
      at = std::min(slot_bytes_, at + kHostBlock);
      result_.error = copier.CopyUntil(at, &result_.slot_offset);
      if (result_.error == 0) continue;
      result_.kind = CopyResult::Kind::kFault;
      return;
    }
  }

  void Publish(SumTeam& team) {
    const Attachment& attachment = *capture_.attachment;
    SlotSums sums(team, slot_, slot_bytes_, chunk_bytes_);
    FillCheck check(capture_.epoch, capture_.step, capture_.attempt);
    for (uint64_t chunk = 0; chunk < attachment.ready().chunk_count;) {
      if (!ok() || Stopped() || !AddBlock(sums)) return;
      if (sums.CanAdd() && !sums.IsReady()) continue;
      const std::optional<uint32_t> crc = sums.Take();
      if (!crc.has_value()) continue;
      Store(chunk++, *crc);
      if (chunk * chunk_bytes_ % stretch_bytes_ == 0) attachment.Hint();
      check.Add(*crc);
    }
    Store(attachment.ready().chunk_count, check.value());
  }

  // The slot belongs to the agent again once nothing writes to it.
  CopyResult Drain() {
    OnEveryLane([](Lane& lane) { return lane.AwaitEnd(); });
    return result_;
  }

 private:
  [[nodiscard]] bool ok() const { return result_.kind == CopyResult::Kind::kDone; }

  bool Stopped() {
    bool open = !capture_.stop.load(std::memory_order_relaxed) && IsOpen(capture_.bell_slot(), capture_.epoch);
    if (!open && ok()) result_.kind = CopyResult::Kind::kStopped;
    return !open;
  }

  void Failed(const Lane& lane, const DeviceError& error) {
    if (error.ok() || !ok()) return;
    result_.kind = CopyResult::Kind::kDevice;
    result_.ordinal = lane.ordinal();
    result_.device = error;
  }

  // Where there is room, once its bytes are there. False after an error.
  bool AddBlock(SlotSums& sums) {
    if (!sums.CanAdd()) return true;
    if (sums.added() % stretch_bytes_ == 0) Await(sums.added() / stretch_bytes_);
    if (ok()) sums.Add();
    return ok();
  }

  void Store(uint64_t chunk, uint32_t crc) {
    std::atomic<uint64_t>& entry = capture_.attachment->chunk(capture_.slot, chunk);
    entry.store(ChunkEntry(capture_.epoch, crc), std::memory_order_release);
  }

  // With the lane's context, however it went before.
  template <typename Call>
  void OnLane(Lane& lane, Call call) {
    ContextScope scope(lane.device());
    Failed(lane, scope.error().ok() ? call(lane) : scope.error());
  }

  template <typename Call>
  void OnEveryLane(Call call) {
    for (const auto& lane : lanes_) OnLane(*lane, call);
  }

  void EnqueuePiece(const Piece& piece) {
    const uint64_t piece_end = piece.slot_offset + piece.bytes;
    for (uint64_t at = piece.slot_offset; at < piece_end && ok();) {
      uint64_t stretch = at / stretch_bytes_;
      uint64_t stretch_end = std::min(slot_bytes_, (stretch + 1) * stretch_bytes_);
      uint64_t end = std::min(piece_end, stretch_end);
      if (piece.lane != DeviceTensors::kHost) EnqueueCopy(piece, at, end);
      if (end == stretch_end) Mark(stretch);
      at = end;
    }
  }

  // A piece without a source is on its way already: its stretch only waits for the lane.
  void EnqueueCopy(const Piece& piece, uint64_t at, uint64_t end) {
    const auto index = static_cast<size_t>(piece.lane);
    touched_[index] = true;
    if (piece.source == nullptr) return;
    OnLane(*lanes_[index], [&](Lane& lane) {
      DeviceAddress from = reinterpret_cast<DeviceAddress>(piece.source) + (at - piece.slot_offset);
      return lane.CopyOut(slot_, at, from, end - at);
    });
  }

  void Mark(uint64_t stretch) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (touched_[i]) OnLane(*lanes_[i], [&](Lane& lane) { return lane.Mark(stretch); });
      touched_[i] = false;
    }
  }

  void Await(uint64_t stretch) {
    for (const auto& lane : lanes_) {
      if (lane->IsMarked(stretch)) OnLane(*lane, [&](Lane& marked) { return marked.Await(stretch); });
    }
  }

  Capture& capture_;
  const std::vector<std::shared_ptr<Lane>>& lanes_;
  char* const slot_;
  const uint64_t slot_bytes_;
  const uint64_t chunk_bytes_;
  const uint64_t stretch_bytes_;
  std::vector<bool> touched_;  // by lane: copies were enqueued since the last mark
  CopyResult result_;
};

// Blocks of pinned memory: the GPU fills the next ones while a team sums the last.
class Digester {
 public:
  Digester(Lane& lane, SumTeam& team) : lane_(lane), team_(team) {}
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;
  ~Digester() {
    team_.Drop();
    for (void* block : blocks_) {
      if (block != nullptr) (void)lane_.device().FreePinned(block);
    }
    for (DeviceEvent event : filled_) {
      if (event.handle != nullptr) (void)lane_.device().DestroyEvent(event);
    }
  }

  DeviceError Open() {
    for (size_t i = 0; i < kDigestBlocks; ++i) {
      if (DeviceError error = lane_.device().AllocatePinned(kDigestBlock, &blocks_[i]); !error.ok()) return error;
      if (DeviceError error = lane_.device().CreateEvent(&filled_[i]); !error.ok()) return error;
    }
    return {};
  }

  DeviceError Sum(DeviceAddress address, uint64_t bytes, uint32_t* crc) {
    *crc = 0;
    const uint64_t count = (bytes + kDigestBlock - 1) / kDigestBlock;
    uint64_t filling = 0;
    uint64_t pushed = 0;
    for (uint64_t popped = 0; popped < count;) {
      for (; filling < count && filling < popped + kDigestBlocks; ++filling) {
        if (DeviceError error = Fill(filling, address, bytes); !error.ok()) return error;
      }
      if (pushed < filling && !team_.IsFull()) {
        if (DeviceError error = lane_.device().Synchronize(filled_[pushed % kDigestBlocks]); !error.ok()) return error;
        team_.Push(blocks_[pushed % kDigestBlocks], std::min(kDigestBlock, bytes - pushed * kDigestBlock));
        ++pushed;
      } else {
        const SumTeam::Sum sum = team_.Pop();
        *crc = Crc32cCombine(*crc, sum.crc, sum.bytes);
        ++popped;
      }
    }
    return {};
  }

 private:
  DeviceError Fill(uint64_t i, DeviceAddress address, uint64_t bytes) {
    uint64_t at = i * kDigestBlock;
    uint64_t part = std::min(kDigestBlock, bytes - at);
    DeviceError error = lane_.device().CopyOut(blocks_[i % kDigestBlocks], address + at, part, lane_.stream());
    return error.ok() ? lane_.device().Record(filled_[i % kDigestBlocks], lane_.stream()) : error;
  }

  Lane& lane_;
  SumTeam& team_;
  std::array<void*, kDigestBlocks> blocks_ = {};
  std::array<DeviceEvent, kDigestBlocks> filled_ = {};
};

DeviceError DigestLane(const Registration& registration, int16_t index, SumTeam& team, std::vector<uint32_t>* digests) {
  Lane& lane = *registration.devices.lanes[static_cast<size_t>(index)];
  ContextScope scope(lane.device());
  if (!scope.error().ok()) return scope.error();
  Digester digester(lane, team);
  if (DeviceError error = digester.Open(); !error.ok()) return error;
  for (size_t i = 0; i < registration.lazy.size(); ++i) {
    uint32_t tensor = registration.lazy[i];
    if (registration.devices.lane(tensor) != index) continue;
    auto address = reinterpret_cast<DeviceAddress>(registration.data[tensor]);
    DeviceError error = digester.Sum(address, registration.shape->tensors[tensor].bytes, &(*digests)[i]);
    if (!error.ok()) return error;
  }
  return {};
}

}  // namespace

CopyResult CopyFromDevices(State& state) {
  DeviceCopy copy(state.capture);
  copy.Enqueue();
  copy.CopyHostMemory();
  {
    MutexLock lock(state.mutex);
    state.capture.submitted = true;
    state.changed.NotifyAll();
  }
  copy.Publish(state.sums);
  return copy.Drain();
}

int32_t DigestOnDevices(const Registration& registration, SumTeam& team, std::vector<uint32_t>* digests) {
  const auto& lanes = registration.devices.lanes;
  for (size_t i = 0; i < lanes.size(); ++i) {
    DeviceError error = DigestLane(registration, static_cast<int16_t>(i), team, digests);
    if (!error.ok()) return DeviceFails(lanes[i]->ordinal(), error);
  }
  return 0;
}

}  // namespace ckptd
