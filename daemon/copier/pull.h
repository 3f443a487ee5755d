// One COPY: see copier.h, and pull.cc for its order.
#ifndef CKPTD_DAEMON_COPIER_PULL_H_
#define CKPTD_DAEMON_COPIER_PULL_H_

#include <chrono>
#include <cstdint>
#include <span>

#include "client/core/copy/fill_check.h"
#include "client/core/device/allocation.h"
#include "client/core/device/copy_stream.h"
#include "client/core/threads/slot_sums.h"
#include "daemon/copier/channel.h"
#include "daemon/copier/memory.h"
#include "daemon/copier/outcome.h"
#include "daemon/copier/plan.h"
#include "proto/local/copier.h"

namespace ckptd {

// How long to wait before the next look, after so many in vain: not at all at first, then ever longer. Pure.
[[nodiscard]] std::chrono::nanoseconds LookAgainAfter(uint32_t looks, std::chrono::nanoseconds most);

// What a COPY works on: all of it outlives the pull, and was checked.
struct PullParts {
  Channel& channel;
  CopyStream& stream;
  const SlotSet& slots;
  GatePage& gate;
  std::span<const ImportedAllocation> imports;
  std::span<const CopierPiece> pieces;
  SumTeam& team;
};

struct PullEnd {
  enum class Kind : uint8_t {
    kAnswer,  // nothing writes to the slot any more
    kClosed,  // the trainer has closed the socket
    kHung,    // it cannot be known whether copies are under way: only this process's end tells
  };
  Kind kind = Kind::kAnswer;
  Outcome outcome;
};

class Pull {
 public:
  Pull(const PullParts& parts, const CopierCopy& copy);
  Pull(const Pull&) = delete;
  Pull& operator=(const Pull&) = delete;

  // With the context current. Once.
  [[nodiscard]] PullEnd Run();

 private:
  enum class State : uint8_t { kGoing, kStopped, kDevice, kClosed };

  [[nodiscard]] bool Going() const { return state_ == State::kGoing; }
  bool Check(const char* what, const DeviceError& error);
  void Look(std::chrono::nanoseconds most);

  void AwaitReady();
  void SendCopying();
  void Enqueue();
  void EnqueuePiece(const CopierPiece& piece);
  void Mark();
  void Follow();
  bool Release();
  bool Publish();
  bool AddBlock();
  void TakeSum();
  void PublishChunk(uint32_t crc);
  void PublishCheck();
  void Complete();
  [[nodiscard]] PullEnd Finish();
  [[nodiscard]] DeviceError Drain();

  const PullParts parts_;
  const CopierCopy copy_;
  BellSlot& word_;
  GateLine& line_;
  char* const slot_;
  const uint64_t stretch_bytes_;

  State state_ = State::kGoing;
  Outcome failure_;
  uint32_t looks_ = 0;     // in vain
  bool enqueued_ = false;  // something, and nobody has seen its end
  bool end_marked_ = false;
  bool released_ = false;
  bool touched_ = false;  // copies were enqueued since the last mark
  uint64_t marking_ = 0;  // the stretch that they lie in
  uint64_t parts_seen_ = 0;
  uint64_t chunk_ = 0;  // the next one to publish
  SlotSums sums_;
  FillCheck check_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_PULL_H_
