#include "daemon/transport/transfer_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {

TransferReceiver::TransferReceiver(TransferName name, const TransferShape& shape, const ReceiverLimits& limits,
                                   Nanos now, Rules rules)
    : name_(std::move(name)),
      shape_(shape),
      limits_(limits),
      rules_(rules),
      chunks_(shape.chunks()),
      state_(shape.chunks() == 0 ? TransferState::kComplete : TransferState::kRunning),
      window_(std::min(kMaxWindow, std::max(limits.window, shape.chunk_bytes()))),
      alone_since_(now) {}

absl::Status TransferReceiver::Connected(ConnectionId connection, Nanos now) {
  if (state_ == TransferState::kFailed)
    return Error(ErrorCode::REFUSED, absl::StrCat(ToString(name_), ": this transfer has failed"));
  if (connection_ != 0 || (busy() && rules_.Keeps(Rule::kWaitForWriters)))
    return Error(ErrorCode::BUSY,
                 absl::StrCat(ToString(name_), ": the connection before has not ended yet; connect again"));
  connection_ = connection;
  alone_since_ = now;
  messages_.clear();
  Welcome welcome{std::vector<bool>(chunks_.size())};
  for (uint32_t i = 0; i < chunks_.size(); ++i) welcome.have[i] = chunks_[i].state == ChunkState::kVerified;
  messages_.emplace_back(std::move(welcome));
  window_sequence_ = 0;
  granted_ = 0;
  Grant(window_);
  return absl::OkStatus();
}

void TransferReceiver::Lost(ConnectionId connection, Nanos now) {
  if (connection == 0 || connection != connection_) return;
  connection_ = 0;
  alone_since_ = now;
  messages_.clear();
}

absl::Status TransferReceiver::Check(const ChunkHeader& header) const {
  if (header.chunk >= shape_.chunks() || header.bytes != shape_.Length(header.chunk))
    return Error(ErrorCode::PROTOCOL,
                 absl::StrCat("sends chunk ", header.chunk, " of ", header.bytes, " bytes; there are ", shape_.chunks(),
                              " of ", shape_.chunk_bytes(), " bytes"));
  if (header.attempt < 1 || header.attempt > kMaxAttempts)
    return Error(ErrorCode::PROTOCOL, absl::StrCat("makes attempt ", header.attempt, " at chunk ", header.chunk));
  const Chunk& chunk = chunks_[header.chunk];
  if (chunk.state == ChunkState::kVerified && chunk.crc != header.crc)
    return Error(ErrorCode::PROTOCOL, absl::StrCat("sends other bytes for chunk ", header.chunk, " than before"));
  return absl::OkStatus();
}

absl::StatusOr<Placement> TransferReceiver::Header(ConnectionId connection, const ChunkHeader& header, Nanos) {
  const bool present = connection != 0 && (connection == connection_ || !rules_.Keeps(Rule::kOnlyThisConnection));
  if (!present || state_ == TransferState::kFailed) return Placement::kPassOver;
  if (absl::Status fits = Check(header); !fits.ok()) return FailProtocol(fits.message());
  Chunk& chunk = chunks_[header.chunk];
  if (!IsWanted(chunk, header)) {
    PassOver(chunk, header);
    return Placement::kPassOver;
  }
  chunk.state = ChunkState::kUnderWay;
  chunk.connection = connection;
  ++under_way_;
  under_way_bytes_ += header.bytes;
  return Placement::kInto;
}

// A sender that keeps to the window never exceeds it. One that does not is left without an answer.
bool TransferReceiver::IsWanted(const Chunk& chunk, const ChunkHeader& header) const {
  if (!rules_.Keeps(Rule::kOneWriter)) return true;
  return chunk.state == ChunkState::kMissing && under_way_bytes_ + header.bytes <= granted_;
}

// Answers to what an earlier connection brought are not said: the next Welcome has said them. Not a TransferMessage
// yet: of one that is moved GCC 12 warns of what it does not hold.
template <typename Message>
void TransferReceiver::Say(ConnectionId connection, Message message) {
  if (connection_ != 0 && connection == connection_) messages_.emplace_back(std::move(message));
}

void TransferReceiver::Grant(uint64_t bytes) {
  window_ = std::min(kMaxWindow, bytes);
  granted_ = std::max(granted_, window_);
  Say(connection_, Window{++window_sequence_, window_});
}

// One that is there is answered anew, in case the answer was lost; one that is under way will be answered.
void TransferReceiver::PassOver(const Chunk& chunk, const ChunkHeader& header) {
  if (chunk.state == ChunkState::kVerified) Say(connection_, Verified{header.chunk, header.attempt});
}

void TransferReceiver::Settled(const ChunkHeader& header, uint32_t crc, Nanos) {
  Chunk& chunk = chunks_[header.chunk];
  --under_way_;
  under_way_bytes_ -= header.bytes;
  chunk.state = ChunkState::kMissing;
  if (state_ != TransferState::kRunning) return;
  const bool matches = crc == header.crc || !rules_.Keeps(Rule::kCompareChecksum);
  matches ? Verify(chunk, header) : Refuse(chunk, header);
}

void TransferReceiver::Broken(const ChunkHeader& header) {
  --under_way_;
  under_way_bytes_ -= header.bytes;
  chunks_[header.chunk].state = ChunkState::kMissing;
}

void TransferReceiver::Verify(Chunk& chunk, const ChunkHeader& header) {
  chunk.state = ChunkState::kVerified;
  chunk.crc = header.crc;
  Say(chunk.connection, Verified{header.chunk, header.attempt});
  if (++verified_ == shape_.chunks()) state_ = TransferState::kComplete;
}

void TransferReceiver::Refuse(Chunk& chunk, const ChunkHeader& header) {
  if (++chunk.damaged >= kMaxAttempts && rules_.Keeps(Rule::kBoundAttempts))
    return Fail(Error(ErrorCode::CORRUPT,
                      absl::StrCat(ToString(name_), ": chunk ", header.chunk, " did not match its checksum after ",
                                   kMaxAttempts, " attempts; check the memory of both nodes and the link")),
                /*tell=*/true);
  Say(chunk.connection, Damaged{header.chunk, header.attempt});
}

void TransferReceiver::Heard(ConnectionId connection, const TransferMessage& message) {
  if (connection == 0 || connection != connection_ || state_ != TransferState::kRunning) return;
  const Stop* stop = std::get_if<Stop>(&message);
  if (stop != nullptr) return Fail(ErrorOf(*stop, name_), /*tell=*/false);
  (void)FailProtocol("says what only a receiver says");
}

void TransferReceiver::Tick(Nanos now) {
  if (state_ != TransferState::kRunning) return;
  const bool alone = connection_ == 0 && now - alone_since_ >= limits_.alone;
  const bool late = now >= limits_.deadline && rules_.Keeps(Rule::kKeepDeadline);
  if (!late && !alone) return;
  Fail(Error(ErrorCode::TIMEOUT,
             absl::StrCat(ToString(name_), ": ", verified_, " of ", shape_.chunks(), " chunks were verified ",
                          alone ? "when the sender did not come back" : "before the deadline")),
       /*tell=*/true);
}

Nanos TransferReceiver::NextDeadline() const {
  if (state_ != TransferState::kRunning) return Nanos::max();
  return connection_ == 0 ? std::min(limits_.deadline, alone_since_ + limits_.alone) : limits_.deadline;
}

void TransferReceiver::Abort(const absl::Status& why) {
  if (state_ == TransferState::kRunning) Fail(why, /*tell=*/true);
}

std::vector<TransferMessage> TransferReceiver::TakeMessages() { return std::exchange(messages_, {}); }

absl::Status TransferReceiver::FailProtocol(absl::string_view what) {
  if (state_ != TransferState::kComplete)
    Fail(Error(ErrorCode::PROTOCOL, absl::StrCat(ToString(name_), ": the sender ", what)), /*tell=*/true);
  return Error(ErrorCode::PROTOCOL, absl::StrCat(ToString(name_), ": the sender ", what));
}

void TransferReceiver::Fail(const absl::Status& why, bool tell) {
  state_ = TransferState::kFailed;
  status_ = why;
  if (tell) Say(connection_, StopOf(why));
}

}  // namespace ckptd::transport
