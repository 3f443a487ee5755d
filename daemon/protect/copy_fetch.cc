#include "daemon/protect/copy_fetch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/run_async.h"
#include "daemon/os/scratch.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/shared_fetch.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kAnswer = std::chrono::seconds(10);  // to one question
constexpr Nanos kNotYet = std::chrono::seconds(10);  // an agent that has not heard of the attempt is asked again
constexpr Nanos kAskAgain = std::chrono::milliseconds(100);
constexpr int kMostAnew = 2;  // of one agent

bool IsNotYet(const absl::Status& status) {
  return CodeOf(status) == ErrorCode::BUSY || CodeOf(status) == ErrorCode::LAYOUT_PREPARING;
}

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

struct CopyFetch::Search {
  Request request;
  size_t next = 0;  // of request.sources
  Nanos patience_ends{0};
  absl::Status last;
  Found found;
  Described failed;  // by no agent
  // Of Fetch.
  Into into;
  Fetched done;
  Brought brought;
  int anew = 0;
  bool was_shared = false;
  std::unique_ptr<SharedFetch> shared;
  std::unique_ptr<transport::CopyMove> move;
  std::optional<HeldSnapshot> from;  // let go of on the loop's thread
};

CopyFetch::CopyFetch(Loop& loop, const Clock& clock, Executor& work, Whose whose, Handler handler)
    : loop_(loop), clock_(clock), work_(work), whose_(std::move(whose)), handler_(std::move(handler)) {}

std::string CopyFetch::Name(const Request& request) const {
  return absl::StrCat("job ", whose_.job, " rank ", whose_.rank, " step ", request.id.step, ": ");
}

v1::DescribeRequest CopyFetch::RequestFor(const Request& request) const {
  v1::DescribeRequest out;
  *out.mutable_copy() = NameOfCopy(whose_.job, whose_.rank, request.id);
  out.set_user(std::to_string(whose_.uid));
  out.set_attempt(request.attempt);
  return out;
}

// ----------------------------------------------------------------------------------------------------- who has it

void CopyFetch::Describe(Request request, Described done) {
  auto search = std::make_shared<Search>();
  search->request = std::move(request);
  search->found = [done](const std::string&, v1::DescribeResponse response) { done(std::move(response)); };
  search->failed = std::move(done);
  Ask(search);
}

void CopyFetch::Ask(const std::shared_ptr<Search>& search) {
  const Request& request = search->request;
  if (search->next >= request.sources.size()) {
    if (search->last.ok()) search->last = Error(ErrorCode::NOT_FOUND, absl::StrCat(Name(request), "nobody has a copy"));
    return search->failed(search->last);
  }
  if (Share(search)) return;
  const std::string agent = request.sources[search->next];
  if (search->patience_ends == Nanos(0)) search->patience_ends = clock_.Monotonic() + kNotYet;
  if (agent == whose_.agent) return Answered(search, agent, AskSelf(request.id));
  transport::CopyCalls* calls = handler_.calls();
  if (calls == nullptr)
    return AskNext(search, agent, Error(ErrorCode::AGENT_UNREACHABLE, "there are no links to other nodes"));
  calls->Describe(agent, RequestFor(request), kAnswer,
                  scope_.Bind([this, search, agent](absl::StatusOr<v1::DescribeResponse> answer) {
                    Answered(search, agent, std::move(answer));
                  }));
}

absl::StatusOr<v1::DescribeResponse> CopyFetch::AskSelf(const SnapshotId& id) {
  CKPTD_ASSIGN_OR_RETURN(const HeldSnapshot held, handler_.open(id));
  v1::DescribeResponse response;
  response.set_world_size(held.head.block.world);
  *response.mutable_layout() = LayoutOf(held.head);
  *response.mutable_record() = RecordOf(*held.record);
  return response;
}

void CopyFetch::Answered(const std::shared_ptr<Search>& search, const std::string& agent,
                         absl::StatusOr<v1::DescribeResponse> answer) {
  if (answer.ok()) return search->found(agent, *std::move(answer));
  const bool again = IsNotYet(answer.status()) && clock_.Monotonic() < search->patience_ends;
  if (!again) return AskNext(search, agent, answer.status());
  loop_.After(kAskAgain, scope_.Bind([this, search] { Ask(search); }));
}

void CopyFetch::AskNext(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& why) {
  Log(kWarning, "copy.not_there")
      .Job(whose_.job)
      .Rank(whose_.rank)
      .Snapshot(search->request.id)
      .Field("source", absl::StrCat("agent ", agent))
      .Error(why);
  search->last = Error(CodeOf(why), absl::StrCat(Name(search->request), "agent ", agent, ": ", why.message()));
  search->patience_ends = Nanos(0);
  search->anew = 0;
  ++search->next;
  Ask(search);
}

// ------------------------------------------------------------------------------------------------------- the bytes

void CopyFetch::Fetch(Request request, Into into, Fetched done) {
  auto search = std::make_shared<Search>();
  search->request = std::move(request);
  search->into = std::move(into);
  search->done = std::move(done);
  fetching_.insert(search);
  std::weak_ptr<Search> weak = search;
  search->found = [this, weak](const std::string& agent, const v1::DescribeResponse& response) {
    if (auto self = weak.lock()) Bring(self, agent, response);
  };
  search->failed = [this, weak](const absl::StatusOr<v1::DescribeResponse>& none) {
    const auto self = weak.lock();
    if (self != nullptr && fetching_.erase(self) != 0) self->done(none.status());
  };
  Ask(search);
}

// All that are left at once. Then nobody is, but for those who told of another record than the others.
bool CopyFetch::Share(const std::shared_ptr<Search>& search) {
  const Request& request = search->request;
  const std::vector<std::string> left(request.sources.begin() + static_cast<ptrdiff_t>(search->next),
                                      request.sources.end());
  const bool own = std::find(left.begin(), left.end(), whose_.agent) != left.end();
  const bool fetches = search->done != nullptr;
  if (!fetches || own || search->was_shared) return false;
  if (handler_.stored == nullptr && !SharedFetch::IsWorthIt(left.size(), search->into.head)) return false;
  search->was_shared = true;
  const std::weak_ptr<Search> weak = search;
  search->shared = std::make_unique<SharedFetch>(SharedFetch::Ends{loop_, clock_, whose_, handler_.calls},
                                                 Request{request.id, left, request.attempt}, search->into,
                                                 handler_.stored == nullptr ? nullptr : handler_.stored(request.id),
                                                 [this, weak](SharedOutcome outcome) {
                                                   if (const auto self = weak.lock())
                                                     EndShared(self, std::move(outcome));
                                                 });
  search->shared->Start();
  return true;
}

void CopyFetch::EndShared(const std::shared_ptr<Search>& search, SharedOutcome outcome) {
  search->shared.reset();
  search->brought = {std::move(outcome.record), outcome.from_storage, outcome.storage};
  for (const auto& [agent, bytes] : outcome.brought) LogBrought(*search, absl::StrCat("agent ", agent), bytes);
  if (outcome.from_storage != 0) LogBrought(*search, "the storage", outcome.from_storage);
  if (outcome.status.ok()) return Finish(search);
  search->last = outcome.status;
  search->next = 0;
  search->request.sources = std::move(outcome.differing);
  Ask(search);
}

void CopyFetch::LogBrought(const Search& search, const std::string& source, uint64_t bytes) const {
  Log(kInfo, "copy.fetched")
      .Job(whose_.job)
      .Rank(whose_.rank)
      .Snapshot(search.request.id)
      .Field("source", source)
      .Field("bytes", bytes);
}

void CopyFetch::Finish(const std::shared_ptr<Search>& search) {
  fetching_.erase(search);
  search->done(search->brought);
}

void CopyFetch::Bring(const std::shared_ptr<Search>& search, const std::string& agent,
                      const v1::DescribeResponse& response) {
  absl::Status status = CheckFits(response, search->into.head);
  search->brought = {response.record()};
  if (status.ok() && agent == whose_.agent) return BringFromSelf(search);
  if (status.ok()) status = Receive(search, agent, response);
  if (!status.ok()) AskNext(search, agent, status);
}

void CopyFetch::BringFromSelf(const std::shared_ptr<Search>& search) {
  auto held = handler_.open(search->request.id);
  if (!held.ok()) return AskNext(search, whose_.agent, held.status());
  search->from = *std::move(held);
  const std::weak_ptr<Search> weak = search;
  RunAsync<absl::Status>(
      loop_, work_,
      [from = search->from->file, record = search->from->record, into = search->into.file] {
        return CopyChecked(*from, *record, *into);
      },
      scope_.Bind([this, weak](const absl::Status& status) {
        if (const auto self = weak.lock()) Arrived(self, whose_.agent, status);
      }));
}

absl::Status CopyFetch::Receive(const std::shared_ptr<Search>& search, const std::string& agent,
                                const v1::DescribeResponse& response) {
  const region::CtlHead& head = search->into.head;
  transport::MoveOrder order;
  order.peer = agent;
  order.name = {agent, whose_.job, whose_.rank, search->request.id, response.slot()};
  order.image_bytes = head.block.slot_bytes;
  order.chunk_bytes = head.block.chunk_bytes;
  CKPTD_ASSIGN_OR_RETURN(order.token, TokenOf(response.token()));
  search->patience_ends = Nanos(0);
  const std::weak_ptr<Search> weak = search;
  order.renew = scope_.Bind([this, weak, agent, slot = response.slot()](auto answered) {
    if (const auto self = weak.lock()) Renew(self, agent, slot, std::move(answered));
  });
  CKPTD_ASSIGN_OR_RETURN(Scratch made, Scratch::Make(head.block.slot_bytes));
  auto scratch = std::make_shared<Scratch>(std::move(made));
  transport::BulkTarget target;
  target.bytes = scratch->bytes();
  target.keep = scratch;
  target.verified = [scratch, file = search->into.file, record = search->brought.record,
                     chunk_bytes = order.chunk_bytes](uint32_t chunk, uint32_t crc) -> absl::Status {
    if (crc != record.chunk_crc(static_cast<int>(chunk)))
      return Error(ErrorCode::CORRUPT, absl::StrCat("chunk ", chunk, " is not the one that its record tells of"));
    const uint64_t offset = chunk * chunk_bytes;
    const auto bytes = scratch->bytes().subspan(offset);
    const uint64_t length = std::min<uint64_t>(chunk_bytes, bytes.size());
    CKPTD_FP("copy.fetch.chunk");
    CKPTD_RETURN_IF_ERROR(file->Write(offset, bytes.first(length)));
    scratch->Discard(offset, length);
    return absl::OkStatus();
  };
  transport::ReceiverLimits limits;
  limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  auto received = handler_.calls()->Receive(std::move(order), std::move(target), limits,
                                            scope_.Bind([this, weak, agent](const absl::Status& status) {
                                              if (const auto self = weak.lock()) Arrived(self, agent, status);
                                            }));
  if (!received.ok()) return received.status();
  search->move = *std::move(received);
  return absl::OkStatus();
}

void CopyFetch::Renew(const std::shared_ptr<Search>& search, const std::string& agent, uint32_t slot,
                      const std::function<void(absl::StatusOr<transport::TransferToken>)>& answered) {
  transport::CopyCalls* calls = handler_.calls();
  if (calls == nullptr) return answered(Error(ErrorCode::AGENT_UNREACHABLE, "there are no links to other nodes"));
  const std::weak_ptr<Search> weak = search;
  calls->Describe(agent, RequestFor(search->request), kAnswer,
                  scope_.Bind([this, weak, slot, answered](const absl::StatusOr<v1::DescribeResponse>& again) {
                    const auto self = weak.lock();
                    if (self == nullptr) return;
                    const absl::Status said = Patiently(*self, again.status());
                    answered(said.ok() ? RenewedToken(slot, again) : absl::StatusOr<transport::TransferToken>(said));
                  }));
}

// What the transport would go on with for long ends here, when the next one may have it.
absl::Status CopyFetch::Patiently(Search& search, const absl::Status& said) const {
  const Nanos now = clock_.Monotonic();
  const bool waits = IsNotYet(said);
  if (!waits) search.patience_ends = Nanos(0);
  if (waits && search.patience_ends == Nanos(0)) search.patience_ends = now + kNotYet;
  const bool last = search.next + 1 >= search.request.sources.size();
  const bool silent = CodeOf(said) == ErrorCode::TIMEOUT && !last;
  if (!silent && (!waits || now < search.patience_ends)) return said;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("it does not go on: ", said.message()));
}

void CopyFetch::Arrived(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& status) {
  // In its own turn: this may be the move's own call.
  std::shared_ptr<transport::CopyMove> ended = std::move(search->move);
  loop_.After(Nanos(0), [ended] {});
  search->from.reset();
  search->patience_ends = Nanos(0);
  if (CodeOf(status) == ErrorCode::FENCED && search->anew++ < kMostAnew) return Ask(search);
  if (!status.ok()) return AskNext(search, agent, status);
  LogBrought(*search, absl::StrCat("agent ", agent), search->into.head.block.slot_bytes);
  Finish(search);
}

}  // namespace ckptd::protect
