#include "daemon/protect/parity_fetch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd::protect {

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

// Nothing of it is moved.
void ParityFetch::Describe(const Request& request, Described done) {
  auto plan = ParityPlan::Make(*request.sources, ends_.whose.rank, ends_.whose.agent);
  if (!plan.ok()) return done(plan.status());
  std::vector<ParityPlan::Source> others;
  std::vector<FirstAnswer::Asked> asked;
  for (const ParityPlan::Source& holder : plan->Holders()) {
    if (holder.agent == ends_.whose.agent) {
      if (const auto told = AskSelf(request, holder)) return done(*told);
      continue;
    }
    others.push_back(holder);
    asked.push_back({holder.agent, ends_.RequestFor(holder, request.id)});
    asked.back().request.set_chunks(1);
  }
  const uint64_t number = next_question_++;
  FirstAnswer::Handler handler;
  handler.check = [id = request.id](const v1::DescribeResponse& told) { return CheckTold(told, id); };
  handler.lost = [this, id = request.id, others](size_t who, const absl::Status& why) {
    LogLost(id, others[who], why);
  };
  handler.told = [this, number, id = request.id,
                  done = std::move(done)](const absl::StatusOr<v1::DescribeResponse>& answer) {
    questions_.erase(number);
    if (answer.ok()) return done(answer);
    const absl::Status& why = answer.status();
    done(Error(CodeOf(why), absl::StrCat(ends_.Name(id), ": by parity: ", why.message())));
  };
  auto& question = questions_[number];
  question = std::make_unique<FirstAnswer>(ends_.loop, ends_.clock, ends_.calls, ends_.attempt, std::move(asked),
                                           Error(ErrorCode::NOT_FOUND, "nobody has parity of it"), std::move(handler));
  question->Start();
}

std::optional<v1::DescribeResponse> ParityFetch::AskSelf(const Request& request, const ParityPlan::Source& holder) {
  auto told = DescribeOwn(request.id, holder);
  if (told.ok()) return *std::move(told);
  LogLost(request.id, holder, told.status());
  return std::nullopt;
}

absl::StatusOr<v1::DescribeResponse> ParityFetch::DescribeOwn(const SnapshotId& id,
                                                              const ParityPlan::Source& holder) const {
  CKPTD_ASSIGN_OR_RETURN(const HeldParity held, ends_.parity(*holder.parity, id));
  CKPTD_ASSIGN_OR_RETURN(v1::DescribeResponse told, DescriptionOf(held, holder.rank));
  CKPTD_RETURN_IF_ERROR(CheckTold(told, id));
  return told;
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
  StripeFetch::Order order{rebuild->request.id, rebuild->into,   block,
                           rebuild->rebuilt,    rebuild->record, rebuild->is_stored};
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
  const bool vain = outcome.lost.empty() && outcome.rebuilt == rebuild->rebuilt;
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
