#include "daemon/transport/served_moves.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/receive_run.h"
#include "daemon/transport/send_run.h"

namespace ckptd::transport {
namespace {

constexpr Nanos kAlone = std::chrono::seconds(60);  // for the next connection
constexpr Nanos kLookAgain = std::chrono::milliseconds(200);

}  // namespace

ServedMoves::ServedMoves(Loop& loop, std::shared_ptr<Mailbox> mailbox, size_t at_once)
    : loop_(loop),
      mailbox_(std::move(mailbox)),
      at_once_(at_once),
      pool_("move-in", at_once, at_once, Priority::kBehind) {}

ServedMoves::~ServedMoves() {
  AbortAll(Error(ErrorCode::DRAINING, "this node leaves"));
  for (const auto& [key, served] : served_) loop_.CancelTimer(served->alone);
  pool_.Stop();
}

absl::Status ServedMoves::CheckRoom() const {
  if (driven_ < at_once_) return absl::OkStatus();
  return Error(ErrorCode::BUSY, absl::StrCat(at_once_, " transfers are under way here; dial again later"));
}

std::string ServedMoves::KeyOf(const BulkEnd& end) {
  return absl::StrCat(std::holds_alternative<ServedReceive>(end.end) ? "< " : "> ", ToString(end.name));
}

// Beside its last second a new one would write to the same memory, and be ended by the end of the old one. Nothing is
// left to do for one that was read to its end.
absl::Status ServedMoves::CheckFree(const BulkEnd& end) const {
  const std::string key = KeyOf(end);
  const auto found = served_.find(key);
  if (found == served_.end() || !found->second->driven || FindSame(key, end) != nullptr) return absl::OkStatus();
  const bool was_read = found->second->receive == nullptr && found->second->run->state() == TransferState::kComplete;
  if (was_read) return absl::OkStatus();
  found->second->run->Abort(Error(ErrorCode::FENCED, absl::StrCat(ToString(end.name), ": begun anew")));
  return Error(ErrorCode::BUSY,
               absl::StrCat(ToString(end.name), ": the transfer before has not ended yet; dial again later"));
}

// What was complete may be asked for once more: whoever sent it may not have heard.
ServedMoves::ServedPtr ServedMoves::FindSame(const std::string& key, const BulkEnd& end) const {
  const auto found = served_.find(key);
  if (found == served_.end() || found->second->run->state() == TransferState::kFailed) return nullptr;
  const ServedReceive* receive = std::get_if<ServedReceive>(&end.end);
  if (receive == nullptr) return found->second->run->state() == TransferState::kRunning ? found->second : nullptr;
  return found->second->receive->Fills(receive->target) ? found->second : nullptr;
}

absl::StatusOr<ServedMoves::ServedPtr> ServedMoves::Make(BulkEnd& end) const {
  CKPTD_ASSIGN_OR_RETURN(const TransferShape shape, TransferShape::Make(end.image_bytes, end.chunk_bytes));
  auto served = std::make_shared<Served>();
  served->peer = end.name.peer;
  if (auto* receive = std::get_if<ServedReceive>(&end.end)) {
    if (receive->target.bytes.size() != end.image_bytes)
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(end.name), ": a target of other size"));
    served->receive =
        std::make_shared<ReceiveRun>(loop_.clock(), end.name, shape, std::move(receive->target), receive->limits);
    served->run = served->receive;
    return served;
  }
  auto& send = std::get<ServedSend>(end.end);
  if (send.chunk_crcs.size() != shape.chunks() || !send.source.read)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(end.name), ": ", send.chunk_crcs.size(),
                                                           " checksums of ", shape.chunks(), " chunks"));
  send.limits.forgetful = true;  // its agent may have begun anew, and asks for the same
  auto run = std::make_shared<SendRun>(loop_.clock(), end.name, shape, std::move(send.source), send.limits);
  for (uint32_t i = 0; i < shape.chunks(); ++i) CKPTD_RETURN_IF_ERROR(run->ChunkReady(i, send.chunk_crcs[i]));
  served->run = std::move(run);
  return served;
}

absl::Status ServedMoves::Begin(BulkEnd end, std::shared_ptr<BulkStream> stream) {
  CKPTD_RETURN_IF_ERROR(CheckFree(end));
  const std::string key = KeyOf(end);
  if (const ServedPtr same = FindSame(key, end)) {
    same->done = std::move(end.done);
    same->wanted = std::move(end.wanted);
    if (!same->driven) {
      Drive(same, std::move(stream));
      return absl::OkStatus();
    }
    if (same->next) same->next->Close(Error(ErrorCode::FENCED, "a newer connection came"));
    same->next = std::move(stream);
    same->run->Cut();
    return absl::OkStatus();
  }
  CKPTD_ASSIGN_OR_RETURN(const ServedPtr served, Make(end));
  served->key = key;
  served->done = std::move(end.done);
  served->wanted = std::move(end.wanted);
  if (const auto before = served_.find(key); before != served_.end())
    Drop(ServedPtr(before->second), Error(ErrorCode::FENCED, absl::StrCat(ToString(end.name), ": begun anew")));
  served_[key] = served;
  Drive(served, std::move(stream));
  return absl::OkStatus();
}

void ServedMoves::Drive(const ServedPtr& served, std::shared_ptr<BulkStream> stream) {
  loop_.CancelTimer(std::exchange(served->alone, 0));
  served->driven = true;
  ++driven_;
  served->run->Prepare();
  auto returned = scope_.Bind([this, served] { Returned(served); });
  const bool runs = pool_.Run([stream, run = served->run, mailbox = mailbox_, returned]() mutable {
    run->Drive(*stream);
    stream.reset();
    run.reset();
    mailbox->Put(std::move(returned));
  });
  if (runs) return;
  stream->Close(Error(ErrorCode::DRAINING, "this node leaves"));
  Returned(served);
}

void ServedMoves::Returned(const ServedPtr& served) {
  --driven_;
  served->driven = false;
  const TransferState state = served->run->state();
  if (served->next && state != TransferState::kFailed) return Drive(served, std::exchange(served->next, nullptr));
  if (served->next) served->next->Close(served->run->status());
  served->next.reset();
  if (state != TransferState::kRunning) Finish(served);
  const bool keeps = state == TransferState::kRunning || (state == TransferState::kComplete && served->receive);
  const auto found = served_.find(served->key);
  const bool current = found != served_.end() && found->second == served;
  if (keeps && current) return WaitForAnother(served);
  if (current) served_.erase(found);
}

void ServedMoves::WaitForAnother(const ServedPtr& served) {
  served->due = std::min(served->run->NextDeadline(), loop_.clock().Monotonic() + kAlone);
  LookAgain(served);
}

// A sender that gave up before it was connected says nothing: its successor, which needs the memory, has fenced it.
void ServedMoves::LookAgain(const ServedPtr& served) {
  const bool wanted = !served->wanted || served->wanted();
  if (!wanted) return Drop(served, Error(ErrorCode::FENCED, absl::StrCat(served->key, ": nobody wants it any more")));
  const Nanos next = served->wanted ? loop_.clock().Monotonic() + kLookAgain : served->due;
  served->alone = loop_.At(std::min(next, served->due), [this, served] {
    if (loop_.clock().Monotonic() < served->due) return LookAgain(served);
    served->run->Tick();
    Drop(served, Error(ErrorCode::TIMEOUT, absl::StrCat(served->key, ": the other node did not come back")));
  });
}

void ServedMoves::Finish(const ServedPtr& served) {
  if (served->receive) served->receive->LetGo();
  if (const MoveDone done = std::exchange(served->done, nullptr)) done(served->run->status());
}

// Whoever drives it lets go by himself; until then it is known, so that none is begun beside it.
void ServedMoves::Drop(const ServedPtr& served, const absl::Status& why) {
  served->run->Abort(why);
  loop_.CancelTimer(std::exchange(served->alone, 0));
  if (served->driven) return;
  if (const auto found = served_.find(served->key); found != served_.end() && found->second == served)
    served_.erase(found);
  Finish(served);
}

void ServedMoves::AbortPeer(const std::string& peer, const absl::Status& why) {
  std::vector<ServedPtr> gone;
  for (const auto& [key, served] : served_) {
    if (served->peer == peer) gone.push_back(served);
  }
  for (const ServedPtr& served : gone) Drop(served, why);
}

void ServedMoves::AbortAll(const absl::Status& why) {
  for (const auto& [key, served] : served_) {
    served->run->Abort(why);
    if (served->next) served->next->Close(why);
    served->next.reset();
  }
}

}  // namespace ckptd::transport
