#include "daemon/transport/transfer_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {

TransferSender::TransferSender(TransferName name, const TransferShape& shape, const SenderLimits& limits, Rules rules)
    : name_(std::move(name)),
      shape_(shape),
      limits_(limits),
      rules_(rules),
      bucket_(limits.bytes_per_second, limits.burst),
      chunks_(shape.chunks()) {}

absl::Status TransferSender::ChunkReady(uint32_t chunk, uint32_t crc) {
  if (chunk >= shape_.chunks())
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(ToString(name_), ": no chunk ", chunk, " of ", shape_.chunks()));
  Chunk& one = chunks_[chunk];
  if (one.state != ChunkState::kAbsent && one.crc != crc)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(ToString(name_), ": chunk ", chunk, " is ready already, with another checksum"));
  if (one.state != ChunkState::kAbsent) return absl::OkStatus();
  one.state = ChunkState::kReady;
  one.crc = crc;
  queue_.push_back(chunk);
  news_ = true;
  return absl::OkStatus();
}

void TransferSender::Connected(ConnectionId connection, Nanos now) {
  if (connection_ != 0) EndConnection(now);
  connection_ = connection;
  gave_back_ = false;
  heard_ = now;
}

void TransferSender::Lost(ConnectionId connection, Nanos now) {
  if (connection == 0 || connection != connection_) return;
  EndConnection(now);
  if (state_ != TransferState::kRunning || gave_back_ || ++vain_connections_ < limits_.vain_connections) return;
  Fail(Error(ErrorCode::TIMEOUT, absl::StrCat(ToString(name_), ": ", vain_connections_,
                                              " connections in a row ended before a chunk was verified; look at the "
                                              "network between the two nodes")),
       /*tell=*/false);
}

// What was in flight is sent again, unless the next Welcome says that it arrived. It is no new attempt: nobody said
// that it was damaged.
void TransferSender::EndConnection(Nanos now) {
  connection_ = 0;
  welcomed_ = hang_up_ = false;
  window_sequence_ = 0;
  window_ = in_flight_ = 0;
  starves_since_.reset();
  heard_ = now;
  if (!rules_.Keeps(Rule::kResendWhatWasCut)) return;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].state != ChunkState::kSent) continue;
    chunks_[i].state = ChunkState::kReady;
    queue_.push_back(i);
  }
}

void TransferSender::Heard(ConnectionId connection, const TransferMessage& message, Nanos now) {
  if (state_ != TransferState::kRunning || connection_ == 0) return;
  if (connection != connection_ && rules_.Keeps(Rule::kOnlyThisConnection)) return;
  heard_ = now;
  std::visit([&](const auto& one) { Take(one, now); }, message);
}

void TransferSender::Take(const Welcome& welcome, Nanos now) {
  if (welcome.have.size() != chunks_.size())
    return FailProtocol(absl::StrCat("welcomes ", welcome.have.size(), " chunks of ", chunks_.size()));
  if (std::exchange(welcomed_, true)) return;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (!welcome.have[i] || !rules_.Keeps(Rule::kFollowWelcome)) continue;
    if (chunks_[i].state == ChunkState::kAbsent)
      return FailProtocol(absl::StrCat("has chunk ", i, ", which nobody sent yet"));
    if (chunks_[i].state != ChunkState::kVerified) MarkVerified(chunks_[i], now);
  }
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].state != ChunkState::kVerified || welcome.have[i]) continue;
    if (!limits_.forgetful) return FailProtocol(absl::StrCat("has lost chunk ", i, ", which it had verified"));
    chunks_[i].state = ChunkState::kReady;
    --verified_;
  }
  if (limits_.forgetful) QueueAnew();
  CompleteIfAll();
}

void TransferSender::Take(const Window& window, Nanos) {
  if (window.bytes > kMaxWindow) return FailProtocol(absl::StrCat("grants ", window.bytes, " bytes"));
  if (window.sequence <= window_sequence_ && rules_.Keeps(Rule::kOrderWindows)) return;
  window_sequence_ = window.sequence;
  window_ = window.bytes;
}

// The chunk that an answer is about; null: the answer makes no sense, and the transfer has failed.
TransferSender::Chunk* TransferSender::Answered(uint32_t chunk, uint32_t attempt) {
  const bool sensible = chunk < chunks_.size() && chunks_[chunk].state != ChunkState::kAbsent && attempt >= 1 &&
                        attempt <= chunks_[chunk].attempt;
  if (sensible) return &chunks_[chunk];
  FailProtocol(absl::StrCat("answers attempt ", attempt, " of chunk ", chunk, ", which was not made"));
  return nullptr;
}

void TransferSender::Take(const Verified& verified, Nanos now) {
  Chunk* chunk = Answered(verified.chunk, verified.attempt);
  if (chunk == nullptr || chunk->state == ChunkState::kVerified) return;
  if (chunk->state == ChunkState::kSent) in_flight_ -= shape_.Length(verified.chunk);
  MarkVerified(*chunk, now);
  CompleteIfAll();
}

void TransferSender::Take(const Damaged& damaged, Nanos) {
  Chunk* chunk = Answered(damaged.chunk, damaged.attempt);
  if (chunk == nullptr || chunk->state != ChunkState::kSent || damaged.attempt != chunk->attempt) return;
  in_flight_ -= shape_.Length(damaged.chunk);
  if (chunk->attempt >= kMaxAttempts && rules_.Keeps(Rule::kBoundAttempts))
    return Fail(Error(ErrorCode::CORRUPT,
                      absl::StrCat(ToString(name_), ": chunk ", damaged.chunk, " did not match its checksum after ",
                                   kMaxAttempts, " attempts; check the memory of both nodes and the link")),
                /*tell=*/true);
  ++chunk->attempt;
  chunk->state = ChunkState::kReady;
  queue_.push_front(damaged.chunk);
}

void TransferSender::Take(const Stop& stop, Nanos) { Fail(ErrorOf(stop, name_), /*tell=*/false); }

void TransferSender::MarkVerified(Chunk& chunk, Nanos) {
  chunk.state = ChunkState::kVerified;
  ++verified_;
  vain_connections_ = 0;
}

// Each once, however often it was lost.
void TransferSender::QueueAnew() {
  queue_.clear();
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].state == ChunkState::kReady) queue_.push_back(i);
  }
}

void TransferSender::CompleteIfAll() {
  if (state_ == TransferState::kRunning && welcomed_ && verified_ == shape_.chunks()) state_ = TransferState::kComplete;
}

// The first chunk of the queue that still wants to be sent.
std::optional<uint32_t> TransferSender::Head() {
  while (!queue_.empty() && chunks_[queue_.front()].state != ChunkState::kReady) queue_.pop_front();
  if (queue_.empty()) return std::nullopt;
  return queue_.front();
}

std::optional<ChunkHeader> TransferSender::Next(Nanos now) {
  if (!MaySend()) return std::nullopt;
  const std::optional<uint32_t> head = Head();
  if (!head.has_value()) return std::nullopt;
  const uint64_t bytes = shape_.Length(*head);
  if (in_flight_ + bytes > window_ && rules_.Keeps(Rule::kKeepWindow)) return std::nullopt;
  if (bucket_.ReadyAt(bytes, now) > now) return std::nullopt;
  queue_.pop_front();
  bucket_.Take(bytes, now);
  if (in_flight_ == 0) heard_ = now;  // nothing was owed before
  in_flight_ += bytes;
  Chunk& chunk = chunks_[*head];
  chunk.state = ChunkState::kSent;
  return ChunkHeader{*head, chunk.attempt, chunk.crc, bytes};
}

// Silence is wrong when the receiver has not welcomed us, has not answered a chunk, or leaves us without a window,
// whether or not a chunk is ready: a new connection finds out what became of it. A capture that makes nothing ready
// while there is a window may take its time.
bool TransferSender::AnswerIsOwed() const {
  if (state_ != TransferState::kRunning || connection_ == 0 || hang_up_) return false;
  return !welcomed_ || in_flight_ > 0 || window_ < shape_.chunk_bytes();
}

void TransferSender::Tick(Nanos now) {
  if (state_ != TransferState::kRunning) return;
  if (now >= limits_.deadline && rules_.Keeps(Rule::kKeepDeadline))
    return Fail(Error(ErrorCode::TIMEOUT, absl::StrCat(ToString(name_), ": ", verified_, " of ", shape_.chunks(),
                                                       " chunks were verified before the deadline")),
                /*tell=*/true);
  if (AnswerIsOwed() && now - heard_ >= limits_.silence) hang_up_ = rules_.Keeps(Rule::kEndSilence);
  GiveBackIfIdle(now);
}

// A capture that stands still, as its trainer may, keeps no connection from others. One that was made again only to
// show that the transfer is still wanted goes at once.
void TransferSender::GiveBackIfIdle(Nanos now) {
  if (!Starves() || verified_ == shape_.chunks()) return starves_since_.reset();
  if (!starves_since_) starves_since_ = now;
  if (news_ && now - *starves_since_ < limits_.idle) return;
  news_ = false;
  hang_up_ = gave_back_ = true;
  vain_connections_ = 0;  // there is somebody who welcomes us
}

// A chunk that may go at once is no deadline: it goes, or the connection cannot take it and tells when it can.
Nanos TransferSender::NextDeadline(Nanos now) {
  if (state_ != TransferState::kRunning) return Nanos::max();
  Nanos next = limits_.deadline;
  if (AnswerIsOwed()) next = std::min(next, heard_ + limits_.silence);
  if (starves_since_ && limits_.idle != Nanos::max()) next = std::min(next, *starves_since_ + limits_.idle);
  const std::optional<uint32_t> head = Head();
  if (connection_ == 0 || !welcomed_ || !head.has_value()) return next;
  const uint64_t bytes = shape_.Length(*head);
  const Nanos ready = bucket_.ReadyAt(bytes, now);
  if (in_flight_ + bytes <= window_ && ready > now) next = std::min(next, ready);
  return next;
}

void TransferSender::Abort(const absl::Status& why) {
  if (state_ == TransferState::kRunning) Fail(why, /*tell=*/true);
}

std::optional<Stop> TransferSender::TakeStop() { return std::exchange(stop_, std::nullopt); }

void TransferSender::FailProtocol(absl::string_view what) {
  Fail(Error(ErrorCode::PROTOCOL, absl::StrCat(ToString(name_), ": the receiver ", what)), /*tell=*/true);
}

void TransferSender::Fail(const absl::Status& why, bool tell) {
  state_ = TransferState::kFailed;
  status_ = why;
  if (tell && connection_ != 0) stop_ = StopOf(why);
}

}  // namespace ckptd::transport
