#include "daemon/protect/shared_fetch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/scratch.h"
#include "daemon/protect/copy_messages.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kLookAgain = std::chrono::milliseconds(200);  // at who is slow, while another one is free
constexpr int kMostBegunAnew = 2;                             // of one agent
constexpr Nanos kAgentsAlone = std::chrono::seconds(1);       // without the storage
constexpr size_t kMostRead = 32;                              // chunks of the storage at once: others read there, too

size_t ChunksIn(const region::CtlHead& head) {
  return (head.block.slot_bytes + head.block.chunk_bytes - 1) / head.block.chunk_bytes;
}

bool IsSame(const v1::CopyRecord& a, const v1::CopyRecord& b) {
  const auto same_ref = [](const v1::SnapshotRef& x, const v1::SnapshotRef& y) {
    return x.attempt() == y.attempt() && x.step() == y.step();
  };
  return same_ref(a.snapshot(), b.snapshot()) && same_ref(a.parent(), b.parent()) &&
         std::equal(a.chunk_crc().begin(), a.chunk_crc().end(), b.chunk_crc().begin(), b.chunk_crc().end());
}

}  // namespace

struct SharedFetch::Source {
  std::string name;
  std::unique_ptr<PieceSource> agent;  // null: the storage
  bool takes_part = false;
  bool is_free = false;  // and takes part
  bool moves = false;    // of an agent
  int anew = 0;
  ShareOut::Range range = {};
};

// What the transport's threads have in common.
struct SharedFetch::Board {
  Board(const CopyFetch::Into& into, size_t sources)
      : head(into.head), file(into.file), shares(ChunksIn(into.head), sources), bytes(sources) {}

  // Chunk `chunk` of the image is in `from`, and is what its record says. Not OK: the source is to bring no more.
  absl::Status Came(size_t source, size_t chunk, std::span<const std::byte> from, Nanos now) {
    if (from.size() != LengthOf(chunk)) return Error(ErrorCode::CORRUPT, absl::StrCat("chunk ", chunk, " is cut"));
    std::shared_ptr<region::SlotFile> to;
    {
      MutexLock lock(mutex);
      if (stopped()) return Error(ErrorCode::FENCED, "not wanted any more");
      to = file;
      ++writing;
    }
    const absl::Status written = to->Write(chunk * head.block.chunk_bytes, from);
    std::function<void()> last;
    absl::Status goes_on = Wrote(source, chunk, from.size(), written, now, &last);
    if (last) last();
    return goes_on;
  }

  absl::Status Wrote(size_t source, size_t chunk, size_t length, const absl::Status& written, Nanos now,
                     std::function<void()>* last) {
    MutexLock lock(mutex);
    if (--writing == 0) last->swap(drained);
    failed.Update(written);
    if (!written.ok()) return written;
    if (shares.Misses(chunk)) bytes[source] += length;
    if (shares.Came(source, chunk, now)) return absl::OkStatus();
    return Error(ErrorCode::FENCED, "others bring the rest");
  }

  [[nodiscard]] size_t LengthOf(size_t chunk) const {
    const uint64_t begin = chunk * head.block.chunk_bytes;
    return std::min<uint64_t>(head.block.chunk_bytes, head.block.slot_bytes - begin);
  }

  // A read that the storage keeps keeps no memory of the region.
  void Stop() {
    MutexLock lock(mutex);
    file = nullptr;
  }
  [[nodiscard]] bool stopped() const CKPTD_REQUIRES(mutex) { return file == nullptr; }

  const region::CtlHead head;
  Mutex mutex;
  std::shared_ptr<region::SlotFile> file CKPTD_GUARDED_BY(mutex);  // null: stopped
  ShareOut shares CKPTD_GUARDED_BY(mutex);
  std::vector<uint64_t> bytes CKPTD_GUARDED_BY(mutex);  // that counted, by source
  absl::Status failed CKPTD_GUARDED_BY(mutex);          // the slot cannot be written: nobody's fault
  size_t writing CKPTD_GUARDED_BY(mutex) = 0;
  std::function<void()> drained CKPTD_GUARDED_BY(mutex);  // `writing` is 0, once
};

SharedFetch::SharedFetch(Ends ends, CopyFetch::Request request, CopyFetch::Into into,
                         std::unique_ptr<StoredCopy> stored, Ended ended)
    : ends_(std::move(ends)),
      request_(std::move(request)),
      into_(std::move(into)),
      ended_(std::move(ended)),
      stored_(std::move(stored)),
      board_(std::make_shared<Board>(into_, request_.sources.size() + 1)) {
  const bool spare = request_.sources.size() > 1;
  for (const std::string& name : request_.sources) {
    auto agent = std::make_unique<PieceSource>(ends_.loop, ends_.clock, ends_.calls, ends_.attempt, name, spare);
    sources_.push_back(std::unique_ptr<Source>(new Source{absl::StrCat("agent ", name), std::move(agent)}));
  }
  sources_.push_back(std::unique_ptr<Source>(new Source{"the storage", nullptr}));
}

SharedFetch::~SharedFetch() { board_->Stop(); }

v1::DescribeRequest SharedFetch::RequestFor(const ShareOut::Range& range) const {
  v1::DescribeRequest out;
  *out.mutable_copy() = NameOfCopy(ends_.whose.job, ends_.whose.rank, request_.id);
  out.set_user(std::to_string(ends_.whose.uid));
  out.set_first_chunk(range.first);
  out.set_chunks(range.count);
  return out;
}

// ------------------------------------------------------------------------------------------------- who brings what

void SharedFetch::Start() {
  for (size_t i = 0; i < kAtOnce && !over_; ++i) Join();
  if (stored_ != nullptr) ends_.loop.After(kAgentsAlone, scope_.Bind([this] { AskStorage(); }));
}

void SharedFetch::AskStorage() {
  if (!over_) stored_->Describe([this](const absl::StatusOr<v1::CopyRecord>& told) { StorageTold(told); });
}

void SharedFetch::Join() {
  if (next_ >= request_.sources.size()) return;
  const size_t i = next_++;
  sources_[i]->takes_part = true;
  Give(i);
}

void SharedFetch::Give(size_t i) {
  if (over_) return;
  Source& source = *sources_[i];
  const bool alone = request_.sources.size() == 1 && !sources_.back()->takes_part;
  std::optional<ShareOut::Range> range;
  {
    MutexLock lock(board_->mutex);
    const Nanos now = ends_.clock.Monotonic();
    const size_t most = source.agent == nullptr ? kMostRead : ChunksIn(into_.head);
    range = alone ? board_->shares.Rest(i, now) : board_->shares.Next(i, now, most);
  }
  source.is_free = !range;
  if (!range) return LookLater();
  source.range = *range;
  if (source.agent == nullptr) return ReadStored(i);
  source.agent->Ask(RequestFor(*range),
                    [this, i](const absl::StatusOr<v1::DescribeResponse>& answer) { Answered(i, answer); });
}

void SharedFetch::LookLater() {
  if (std::exchange(looks_later_, true)) return;
  ends_.loop.After(kLookAgain, scope_.Bind([this] {
    looks_later_ = false;
    Look();
  }));
}

void SharedFetch::Look() {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (!sources_[i]->moves || !sources_[i]->agent->WaitsForOthers()) continue;
    MutexLock lock(board_->mutex);
    board_->shares.Waits(i, ends_.clock.Monotonic());
  }
  for (size_t i = 0; i < sources_.size() && !over_; ++i) {
    if (sources_[i]->is_free) Give(i);
  }
}

// ------------------------------------------------------------------------------------------------------- the bytes

void SharedFetch::Answered(size_t i, const absl::StatusOr<v1::DescribeResponse>& answer) {
  if (over_) return;
  if (IsRelieved(i)) return Give(i);
  absl::Status status = answer.status();
  if (status.ok()) status = CheckFits(*answer, into_.head);
  if (status.ok()) status = TakeRecord(i, answer->record());
  if (status.ok()) status = Receive(i, *answer);
  if (!status.ok()) Lose(i, status);
}

// Others took all of its range while it was asked.
bool SharedFetch::IsRelieved(size_t i) {
  MutexLock lock(board_->mutex);
  return board_->shares.left(i) == 0 && board_->shares.Ended(i, ends_.clock.Monotonic());
}

absl::Status SharedFetch::TakeRecord(size_t i, const v1::CopyRecord& told) {
  const Source& source = *sources_[i];
  if (record_ == nullptr) {
    record_ = std::make_shared<v1::CopyRecord>(told);
    told_by_ = source.name;
  }
  if (IsSame(*record_, told)) return absl::OkStatus();
  if (source.agent != nullptr) differing_.push_back(request_.sources[i]);
  return Error(ErrorCode::CORRUPT, absl::StrCat("its record is another one than that of ", told_by_));
}

// Its files may be of a layout that has other chunks.
void SharedFetch::StorageTold(const absl::StatusOr<v1::CopyRecord>& told) {
  if (over_) return;
  absl::Status status = told.status();
  if (status.ok() && static_cast<size_t>(told->chunk_crc_size()) != ChunksIn(into_.head))
    status = Error(ErrorCode::CORRUPT, "it has other chunks");
  const size_t i = sources_.size() - 1;
  if (status.ok()) status = TakeRecord(i, *told);
  if (!status.ok()) return StorageLost(status);
  sources_[i]->takes_part = true;
  Give(i);
}

// What is not committed is no news.
void SharedFetch::StorageLost(const absl::Status& why) {
  if (CodeOf(why) == ErrorCode::NOT_FOUND) return;
  storage_ = why;
  LogLost(*sources_.back(), why);
}

void SharedFetch::ReadStored(size_t i) {
  const ShareOut::Range range = sources_[i]->range;
  stored_->Read(
      range.first, range.count,
      [i, board = board_, &clock = ends_.clock](size_t chunk, std::span<const std::byte> bytes) {
        return board->Came(i, chunk, bytes, clock.Monotonic());
      },
      [this, i](const absl::Status& status) { Brought(i, status); });
}

absl::Status SharedFetch::Receive(size_t i, const v1::DescribeResponse& told) {
  Source& source = *sources_[i];
  const ShareOut::Range range = source.range;
  const uint64_t chunk_bytes = into_.head.block.chunk_bytes;
  const uint64_t begin = range.first * chunk_bytes;
  const uint64_t bytes = std::min<uint64_t>(into_.head.block.slot_bytes - begin, range.count * chunk_bytes);
  CKPTD_ASSIGN_OR_RETURN(Scratch made, Scratch::Make(bytes));
  auto scratch = std::make_shared<Scratch>(std::move(made));
  transport::BulkTarget target;
  target.bytes = scratch->bytes();
  target.keep = scratch;
  target.verified = [scratch, i, range, chunk_bytes, board = board_, record = record_, &clock = ends_.clock](
                        uint32_t number, uint32_t crc) -> absl::Status {
    const size_t chunk = range.first + number;
    if (crc != record->chunk_crc(static_cast<int>(chunk)))
      return Error(ErrorCode::CORRUPT, absl::StrCat("chunk ", chunk, " is not the one that its record tells of"));
    const auto rest = scratch->bytes().subspan(number * chunk_bytes);
    const auto length = std::min<uint64_t>(chunk_bytes, rest.size());
    CKPTD_FP("copy.fetch.chunk");
    absl::Status goes_on = board->Came(i, chunk, rest.first(length), clock.Monotonic());
    scratch->Discard(number * chunk_bytes, length);
    return goes_on;
  };
  CKPTD_RETURN_IF_ERROR(source.agent->Receive(told, bytes, chunk_bytes, std::move(target),
                                              [this, i](const absl::Status& status) { Brought(i, status); }));
  source.moves = true;
  ++moving_;
  return absl::OkStatus();
}

void SharedFetch::Brought(size_t i, const absl::Status& status) {
  Source& source = *sources_[i];
  if (std::exchange(source.moves, false)) --moving_;
  if (over_) return MaybeFinish();
  bool all = false;
  bool done = false;
  absl::Status failed;
  {
    MutexLock lock(board_->mutex);
    all = board_->shares.Ended(i, ends_.clock.Monotonic());
    done = board_->shares.missing() == 0;
    failed = board_->failed;
  }
  if (done || !failed.ok()) return End(failed);
  const bool anew = !all && CodeOf(status) == ErrorCode::FENCED && source.anew++ < kMostBegunAnew;
  if (!all && !anew) return Lose(i, status.ok() ? Error(ErrorCode::PROTOCOL, "it ended before all had come") : status);
  Give(i);
  Look();
}

void SharedFetch::Lose(size_t i, const absl::Status& why) {
  Source& source = *sources_[i];
  {
    MutexLock lock(board_->mutex);
    board_->shares.Lose(i, ends_.clock.Monotonic());
  }
  source.takes_part = source.is_free = false;
  if (source.agent == nullptr) {
    StorageLost(why);
  } else {
    AgentLost(source, why);
  }
  if (!over_) Look();
}

void SharedFetch::AgentLost(const Source& source, const absl::Status& why) {
  LogLost(source, why);
  last_ = Error(CodeOf(why), absl::StrCat("job ", ends_.whose.job, " rank ", ends_.whose.rank, " step ",
                                          request_.id.step, ": ", source.name, ": ", why.message()));
  Join();
  if (over_) return;
  const auto takes_part = [](const auto& each) { return each->agent != nullptr && each->takes_part; };
  const auto left = std::count_if(sources_.begin(), sources_.end(), takes_part);
  if (left == 0) return End(last_);
  if (left == 1) (*std::find_if(sources_.begin(), sources_.end(), takes_part))->agent->set_spare(false);
}

void SharedFetch::LogLost(const Source& source, const absl::Status& why) const {
  Log(kWarning, "copy.not_there")
      .Job(ends_.whose.job)
      .Rank(ends_.whose.rank)
      .Snapshot(request_.id)
      .Field("source", source.name)
      .Error(why);
}

// --------------------------------------------------------------------------------------------------------- the end

// What still moves writes into the slot: it is waited for. Of a read of the storage only a chunk that is being written.
void SharedFetch::End(const absl::Status& status) {
  over_ = true;
  status_ = status;
  board_->Stop();
  for (const auto& source : sources_) {
    if (source->moves) source->agent->Cancel();
  }
  MaybeFinish();
}

bool SharedFetch::StillWrites() {
  MutexLock lock(board_->mutex);
  if (board_->writing == 0) return false;
  board_->drained = [&loop = ends_.loop, then = scope_.Bind([this] { MaybeFinish(); })] {
    if (!loop.Post(then)) Log(kError, "app.post_lost");
  };
  return true;
}

// In its own turn: this may be a move's own call.
void SharedFetch::MaybeFinish() {
  if (moving_ != 0 || finished_ || StillWrites()) return;
  finished_ = true;
  ends_.loop.After(Nanos(0), scope_.Bind([this] {
    const Ended ended = std::move(ended_);
    ended(Result());
  }));
}

SharedOutcome SharedFetch::Result() const {
  SharedOutcome outcome{status_, record_ == nullptr ? v1::CopyRecord() : *record_, {}, 0, storage_, differing_};
  MutexLock lock(board_->mutex);
  for (size_t i = 0; i < request_.sources.size(); ++i) {
    if (board_->bytes[i] != 0) outcome.brought.emplace_back(request_.sources[i], board_->bytes[i]);
  }
  outcome.from_storage = board_->bytes.back();
  return outcome;
}

}  // namespace ckptd::protect
