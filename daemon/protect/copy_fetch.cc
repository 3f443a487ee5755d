#include "daemon/protect/copy_fetch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/run_async.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/first_answer.h"
#include "daemon/protect/shared_fetch.h"
#include "daemon/protect/stripe_fetch.h"

namespace ckptd::protect {
namespace {

// Chunk by chunk from one file into another.
absl::Status CopyChecked(const region::SlotFile& from, const region::SlotRecord& record, region::SlotFile& into) {
  std::vector<std::byte> chunk(record.chunk_bytes);
  for (size_t i = 0; i < record.chunk_crcs.size(); ++i) {
    const std::span<std::byte> bytes(chunk.data(), record.ChunkLength(i));
    CKPTD_RETURN_IF_ERROR(from.Read(i * record.chunk_bytes, bytes));
    if (Crc32c(0, bytes.data(), bytes.size()) != record.chunk_crcs[i])
      return Error(ErrorCode::CORRUPT, absl::StrCat("chunk ", i, " of the copy is damaged"));
    CKPTD_RETURN_IF_ERROR(into.Write(i * record.chunk_bytes, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

struct CopyFetch::Bringing {
  Request request;  // without this agent
  Into into;
  Fetched done;
  absl::Status last;
  Brought brought;
  std::optional<HeldSnapshot> from;  // let go of on the loop's thread
  std::unique_ptr<SharedFetch> shared;
};

CopyFetch::CopyFetch(Loop& loop, const Clock& clock, Executor& work, Whose whose, Handler handler)
    : loop_(loop), clock_(clock), work_(work), whose_(std::move(whose)), handler_(std::move(handler)) {}
CopyFetch::~CopyFetch() = default;

std::string CopyFetch::Name(const Request& request) const {
  return absl::StrCat("job ", whose_.job, " rank ", whose_.rank, " step ", request.id.step, ": ");
}

v1::DescribeRequest CopyFetch::RequestFor(const Request& request) const {
  v1::DescribeRequest out;
  *out.mutable_copy() = NameOfCopy(whose_.job, whose_.rank, request.id);
  out.set_user(std::to_string(whose_.uid));
  return out;
}

void CopyFetch::LogNotThere(const Request& request, const std::string& agent, const absl::Status& why) const {
  Log(kWarning, "copy.not_there")
      .Job(whose_.job)
      .Rank(whose_.rank)
      .Snapshot(request.id)
      .Field("source", absl::StrCat("agent ", agent))
      .Error(why);
}

absl::Status CopyFetch::NotHere(const Request& request, const absl::Status& why) const {
  LogNotThere(request, whose_.agent, why);
  return Error(CodeOf(why), absl::StrCat(Name(request), "agent ", whose_.agent, ": ", why.message()));
}

// ----------------------------------------------------------------------------------------------- what it looks like

void CopyFetch::Describe(Request request, Described done) {
  absl::Status none = Error(ErrorCode::NOT_FOUND, "nobody has a copy");
  if (std::erase(request.sources, whose_.agent) != 0) {
    const absl::StatusOr<v1::DescribeResponse> here = AskSelf(request.id);
    if (here.ok()) return done(here);
    LogNotThere(request, whose_.agent, here.status());
    none = here.status();
  }
  std::vector<FirstAnswer::Asked> asked;
  for (const std::string& agent : request.sources) asked.push_back({agent, RequestFor(request)});
  const uint64_t number = next_question_++;
  FirstAnswer::Handler handler;
  handler.check = [](const v1::DescribeResponse&) { return absl::OkStatus(); };
  handler.lost = [this, request](size_t who, const absl::Status& why) {
    LogNotThere(request, request.sources[who], why);
  };
  handler.told = [this, number, request, done = std::move(done)](const absl::StatusOr<v1::DescribeResponse>& answer) {
    questions_.erase(number);
    if (answer.ok()) return done(answer);
    done(Error(CodeOf(answer.status()), absl::StrCat(Name(request), answer.status().message())));
  };
  auto& question = questions_[number];
  question = std::make_unique<FirstAnswer>(loop_, clock_, handler_.calls, handler_.attempt, std::move(asked),
                                           std::move(none), std::move(handler));
  question->Start();
}

absl::StatusOr<v1::DescribeResponse> CopyFetch::AskSelf(const SnapshotId& id) const {
  CKPTD_ASSIGN_OR_RETURN(const HeldSnapshot held, handler_.open(id));
  return DescriptionOf(held);
}

// ------------------------------------------------------------------------------------------------------- the bytes

void CopyFetch::Fetch(Request request, Into into, Fetched done) {
  const bool own = std::erase(request.sources, whose_.agent) != 0;
  auto bringing = std::make_shared<Bringing>();
  bringing->last = Error(ErrorCode::NOT_FOUND, absl::StrCat(Name(request), "nobody has a copy"));
  bringing->request = std::move(request);
  bringing->into = std::move(into);
  bringing->done = std::move(done);
  bringing_.insert(bringing);
  if (own) return BringFromSelf(bringing);
  Share(bringing, Stored(bringing->request.id));
}

std::unique_ptr<StoredCopy> CopyFetch::Stored(const SnapshotId& id) const {
  return handler_.stored == nullptr ? nullptr : handler_.stored(id);
}

void CopyFetch::BringFromSelf(const std::shared_ptr<Bringing>& bringing) {
  auto held = handler_.open(bringing->request.id);
  absl::Status status = held.status();
  if (status.ok()) status = CheckFits(DescriptionOf(*held), bringing->into.head);
  if (!status.ok()) return CopiedFromSelf(bringing, status);
  bringing->from = *std::move(held);
  const std::weak_ptr<Bringing> weak = bringing;
  RunAsync<absl::Status>(
      loop_, work_,
      [from = bringing->from->file, record = bringing->from->record, into = bringing->into.file] {
        return CopyChecked(*from, *record, *into);
      },
      scope_.Bind([this, weak](const absl::Status& copied) {
        if (const auto self = weak.lock()) CopiedFromSelf(self, copied);
      }));
}

void CopyFetch::CopiedFromSelf(const std::shared_ptr<Bringing>& bringing, const absl::Status& status) {
  const std::optional<HeldSnapshot> from = std::exchange(bringing->from, std::nullopt);
  if (!status.ok()) {
    bringing->last = NotHere(bringing->request, status);
    return Share(bringing, Stored(bringing->request.id));
  }
  bringing->brought.record = RecordOf(*from->record);
  LogBrought(bringing->request, absl::StrCat("agent ", whose_.agent), bringing->into.head.block.slot_bytes);
  Finish(bringing, absl::OkStatus());
}

void CopyFetch::Share(const std::shared_ptr<Bringing>& bringing, std::unique_ptr<StoredCopy> stored) {
  if (bringing->request.sources.empty()) return Finish(bringing, bringing->last);
  const std::weak_ptr<Bringing> weak = bringing;
  bringing->shared = std::make_unique<SharedFetch>(
      SharedFetch::Ends{loop_, clock_, whose_, handler_.calls, handler_.attempt}, bringing->request, bringing->into,
      std::move(stored), [this, weak](SharedOutcome outcome) {
        if (const auto self = weak.lock()) EndShared(self, std::move(outcome));
      });
  bringing->shared->Start();
}

void CopyFetch::EndShared(const std::shared_ptr<Bringing>& bringing, SharedOutcome outcome) {
  const Request& request = bringing->request;
  bringing->shared.reset();
  bringing->brought = {std::move(outcome.record), outcome.from_storage, outcome.storage};
  for (const auto& [agent, bytes] : outcome.brought) LogBrought(request, absl::StrCat("agent ", agent), bytes);
  if (outcome.from_storage != 0) LogBrought(request, "the storage", outcome.from_storage);
  if (outcome.status.ok()) return Finish(bringing, absl::OkStatus());
  bringing->last = outcome.status;
  bringing->request.sources = std::move(outcome.differing);
  Share(bringing, nullptr);
}

void CopyFetch::Finish(const std::shared_ptr<Bringing>& bringing, const absl::Status& status) {
  bringing_.erase(bringing);
  bringing->done(status.ok() ? absl::StatusOr<Brought>(bringing->brought) : status);
}

void CopyFetch::LogBrought(const Request& request, const std::string& source, uint64_t bytes) const {
  Log(kInfo, "copy.fetched")
      .Job(whose_.job)
      .Rank(whose_.rank)
      .Snapshot(request.id)
      .Field("source", source)
      .Field("bytes", bytes);
}

}  // namespace ckptd::protect
