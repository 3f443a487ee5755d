#include "daemon/protect/parity_fetch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd::protect {

// Whose answer ends it, or the next holder.
struct ParityFetch::Question {
  Request request;
  std::vector<ParityPlan::Source> holders;
  size_t next = 0;
  std::unique_ptr<PieceSource> asked;
  absl::Status last;
  Described done;
};

struct ParityFetch::Rebuild {
  Request request;
  CopyFetch::Into into;
  std::optional<ParityPlan> plan;
  std::vector<uint32_t> stripes;
  size_t block = 0;           // the number of the one at hand
  std::vector<bool> rebuilt;  // its chunks
  bool some_rebuilt = false;
  std::shared_ptr<const v1::CopyRecord> record;
  StripeFetch::Lengths lengths;
  std::unique_ptr<StripeFetch> stripe;
  std::unique_ptr<StoredCopy> stored;
  bool is_stored = false;
  Fetched done;
};

ParityFetch::ParityFetch(RebuildEnds ends) : ends_(std::move(ends)) {}
ParityFetch::~ParityFetch() = default;

void ParityFetch::LogLost(const SnapshotId& id, const ParityPlan::Source& source, const absl::Status& why) const {
  Log(kWarning, "parity.source_lost")
      .Job(ends_.whose.job)
      .Rank(ends_.whose.rank)
      .Snapshot(id)
      .Field("agent", source.agent)
      .Field("of", source.parity ? absl::StrCat("stripe ", source.parity->stripe, " parity ", source.parity->row)
                                 : absl::StrCat("rank ", source.rank))
      .Error(why);
}

// ----------------------------------------------------------------------------------------------------- what it was

void ParityFetch::Describe(Request request, Described done) {
  auto question = std::make_shared<Question>();
  question->request = std::move(request);
  question->done = std::move(done);
  auto plan = ParityPlan::Make(*question->request.sources, ends_.whose.rank, ends_.whose.agent);
  if (!plan.ok()) return question->done(plan.status());
  question->holders = plan->Holders();
  question->last = Error(ErrorCode::NOT_FOUND, "nobody has parity of it");
  asking_.insert(question);
  AskNext(question);
}

void ParityFetch::AskNext(const std::shared_ptr<Question>& question) {
  if (question->next >= question->holders.size()) {
    asking_.erase(question);
    const std::string name = ends_.Name(question->request.id);
    return question->done(Error(CodeOf(question->last), absl::StrCat(name, ": by parity: ", question->last.message())));
  }
  const ParityPlan::Source& holder = question->holders[question->next];
  if (holder.agent == ends_.whose.agent) {
    const auto held = ends_.parity(*holder.parity, question->request.id);
    using Told = absl::StatusOr<v1::DescribeResponse>;
    return Answered(question, held.ok() ? DescriptionOf(*held, holder.rank) : Told(held.status()));
  }
  question->asked = std::make_unique<PieceSource>(ends_.loop, ends_.clock, ends_.calls, holder.agent, true);
  v1::DescribeRequest asked = ends_.RequestFor(holder, question->request.id, question->request.attempt);
  asked.set_chunks(1);  // nothing of it is moved
  const std::weak_ptr<Question> weak = question;
  question->asked->Ask(std::move(asked), [this, weak](const absl::StatusOr<v1::DescribeResponse>& answer) {
    if (const auto self = weak.lock()) Answered(self, answer);
  });
}

// Who is asked goes in his own turn: this may be his call.
void ParityFetch::Answered(const std::shared_ptr<Question>& question,
                           const absl::StatusOr<v1::DescribeResponse>& answer) {
  const std::shared_ptr<PieceSource> ended = std::move(question->asked);
  ends_.loop.After(Nanos(0), [ended] {});
  absl::Status status = answer.status();
  if (status.ok()) status = CheckTold(*answer, question->request.id);
  if (status.ok()) {
    asking_.erase(question);
    return question->done(answer);
  }
  LogLost(question->request.id, question->holders[question->next], status);
  question->last = status;
  ++question->next;
  AskNext(question);
}

// ------------------------------------------------------------------------------------------------------- the bytes

void ParityFetch::Fetch(Request request, CopyFetch::Into into, Fetched done) {
  auto rebuild = std::make_shared<Rebuild>();
  rebuild->request = std::move(request);
  rebuild->into = std::move(into);
  rebuild->done = std::move(done);
  rebuilding_.insert(rebuild);
  auto plan = ParityPlan::Make(*rebuild->request.sources, ends_.whose.rank, ends_.whose.agent);
  if (!plan.ok()) return End(rebuild, plan.status());
  rebuild->plan = *std::move(plan);
  rebuild->stripes = rebuild->plan->Stripes();
  AskStorage(rebuild);
  Next(rebuild);
}

void ParityFetch::AskStorage(const std::shared_ptr<Rebuild>& rebuild) {
  if (ends_.stored == nullptr) return;
  rebuild->stored = ends_.stored(rebuild->request.id);
  const std::weak_ptr<Rebuild> weak = rebuild;
  rebuild->stored->Describe([weak](const absl::StatusOr<v1::CopyRecord>& told) {
    const auto self = weak.lock();
    if (self == nullptr || !told.ok()) return;
    self->is_stored = true;
    if (self->stripe != nullptr) self->stripe->CanBeSpared();
  });
}

// A short image has nothing in its last blocks.
void ParityFetch::Next(const std::shared_ptr<Rebuild>& rebuild) {
  const auto& block_of_ctl = rebuild->into.head.block;
  while (rebuild->block < rebuild->stripes.size()) {
    const uint32_t stripe = rebuild->stripes[rebuild->block];
    const erasure::Extent block = BlockGivenBy(rebuild->plan->PlaceIn(stripe), ends_.whose.rank,
                                               block_of_ctl.slot_bytes, block_of_ctl.chunk_bytes);
    if (rebuild->rebuilt.empty())
      rebuild->rebuilt.resize((block.size + block_of_ctl.chunk_bytes - 1) / block_of_ctl.chunk_bytes);
    const auto& rebuilt = rebuild->rebuilt;
    if (!std::all_of(rebuilt.begin(), rebuilt.end(), [](bool is) { return is; }))
      return StartStripe(rebuild, stripe, block);
    ++rebuild->block;
    rebuild->rebuilt.clear();
  }
  End(rebuild, absl::OkStatus());
}

void ParityFetch::StartStripe(const std::shared_ptr<Rebuild>& rebuild, uint32_t stripe, const erasure::Extent& block) {
  auto chosen = rebuild->plan->Choose(stripe);
  if (!chosen.ok()) return End(rebuild, chosen.status());
  const std::weak_ptr<Rebuild> weak = rebuild;
  StripeFetch::Order order{rebuild->request.id, rebuild->request.attempt, rebuild->into,     block,
                           rebuild->rebuilt,    rebuild->record,          rebuild->is_stored};
  rebuild->stripe = std::make_unique<StripeFetch>(ends_, rebuild->lengths, *std::move(chosen), std::move(order),
                                                  [this, weak, stripe](StripeFetch::Outcome outcome) {
                                                    if (const auto self = weak.lock())
                                                      StripeEnded(self, stripe, std::move(outcome));
                                                  });
  rebuild->stripe->Start();
}

// The record that a parity told of before anything was rebuilt by it may be as wrong as the parity.
void ParityFetch::StripeEnded(const std::shared_ptr<Rebuild>& rebuild, uint32_t stripe, StripeFetch::Outcome outcome) {
  if (!outcome.failed.ok()) return End(rebuild, outcome.failed);
  for (const auto& [source, why] : outcome.lost) {
    LogLost(rebuild->request.id, source, why);
    rebuild->plan->Lose(stripe, source, why);
  }
  const bool vain =
      outcome.lost.empty() && std::find(outcome.rebuilt.begin(), outcome.rebuilt.end(), false) != outcome.rebuilt.end();
  if (vain) return End(rebuild, Error(ErrorCode::INTERNAL, absl::StrCat("stripe ", stripe, " was not rebuilt")));
  rebuild->some_rebuilt =
      rebuild->some_rebuilt || std::find(outcome.rebuilt.begin(), outcome.rebuilt.end(), true) != outcome.rebuilt.end();
  rebuild->rebuilt = std::move(outcome.rebuilt);
  rebuild->record = rebuild->some_rebuilt ? outcome.record : nullptr;
  Next(rebuild);
}

void ParityFetch::End(const std::shared_ptr<Rebuild>& rebuild, const absl::Status& status) {
  rebuilding_.erase(rebuild);
  if (!status.ok())
    return rebuild->done(Error(CodeOf(status), absl::StrCat(ends_.Name(rebuild->request.id), ": ", status.message())));
  Log(kInfo, "parity.rebuilt").Job(ends_.whose.job).Rank(ends_.whose.rank).Snapshot(rebuild->request.id);
  rebuild->done(*rebuild->record);
}

}  // namespace ckptd::protect
