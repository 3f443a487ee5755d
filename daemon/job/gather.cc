// GATHER: who has joined, what every agent holds, the choice, and the file that makes it one for ever.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/coordinator.h"
#include "daemon/job/lineage.h"
#include "daemon/job/losses.h"

namespace ckptd::job {
namespace {

// No job restarts so often: whoever says so is not believed, and attempts never wrap.
constexpr AttemptId kNoAttempt = 1'000'000'000'000;

bool InRestore(v1::RankReport::Load load) {
  return load == v1::RankReport::WAIT || load == v1::RankReport::LOADED || load == v1::RankReport::FAILED;
}

}  // namespace

void Coordinator::On(const ReportReceived& event) {
  const v1::Report& report = *event.report;
  if (report.seen() < kNoAttempt) heard_ = std::max(heard_, report.seen());
  if (report.seen() > attempt_) HigherAttempt(report.seen(), report.agent());
  if (report.lacks() != 0) return SendWhole(report);
  if (!Coordinates() || report.seen() != attempt_) return;
  const bool answers = report.answers() == context_.config.incarnation;
  if (!answers && context_.config.rules.reports_answer_incarnation) return;
  if (!reports_.Take(event.report) || !decided_) return;
  grants_.Raise(ToId(report.watermark()), report.floor());
  NotePersisted(report);
  const SnapshotId given_up = protection_.marks().given_up;
  LearnMarks(MarksOf(report));
  dirty_ = dirty_ || protection_.marks().given_up != given_up;
}

// Whoever asks has nothing in memory, so its `seen` may be of the attempt before. Who asks again hears it by the timer:
// a question is short and the answer is not.
void Coordinator::SendWhole(const v1::Report& asks) {
  if (!Coordinates() || state_ == nullptr || asks.answers() != context_.config.incarnation) return;
  if (reports_.Lack(asks.agent())) Send(asks.agent());
}

// A rank belongs to the ticket that came first, as long as it waits; a second one is refused when the first is seen to
// live. Until then it waits, and nothing is decided: of the two, one is dead.
void Coordinator::CollectClaims() {
  unsettled_ = false;
  std::map<Rank, std::vector<v1::RankClaim>> waiting;
  for (const auto& [agent, report] : reports_.by_agent()) {
    for (const v1::RankReport& facts : report->ranks()) {
      if (!InRestore(facts.load()) || facts.ticket() == 0 || refused_.count(facts.ticket()) != 0) continue;
      if (facts.rank() == 0 && facts.ticket() != ticket_) continue;  // its own agent opens its attempt
      v1::RankClaim& claim = waiting[facts.rank()].emplace_back();
      claim.set_rank(facts.rank());
      claim.set_ticket(facts.ticket());
      claim.set_agent(agent);
      claim.set_region_id(report->region_id());
    }
  }
  for (const auto& [rank, claims] : waiting) KeepOrReplaceClaim(rank, claims);
  const size_t before = claims_.size();
  std::erase_if(claims_, [&](const auto& claim) { return waiting.count(claim.first) == 0; });
  if (claims_.size() != before) ClaimsChanged();
}

// Who has joined, or loaded, is told for the sake of whoever runs out of patience; that may wait for the timer, or each
// rank of thousands would be told to all as it comes.
void Coordinator::ClaimsChanged() {
  claims_dirty_ = true;
  dirty_ = dirty_ || context_.config.members.size() < 2;
}

void Coordinator::KeepOrReplaceClaim(Rank rank, const std::vector<v1::RankClaim>& waiting) {
  const v1::RankClaim& winner = WhoseRank(rank, waiting);
  if (const auto known = claims_.find(rank); known == claims_.end() || known->second.ticket() != winner.ticket()) {
    claims_[rank] = winner;
    ClaimsChanged();
  }
  for (const v1::RankClaim& claim : waiting) {
    if (claim.ticket() == winner.ticket()) continue;
    if (!SaidAgain(winner, claim.ticket())) {
      unsettled_ = true;
      continue;
    }
    RefuseTickets(ErrorCode::RANK_TAKEN,
                  absl::StrCat(Prefix(), "rank ", rank, " on agent ", claim.agent(), " was already claimed on agent ",
                               winner.agent()),
                  {claim.ticket()});
  }
}

// Who has it, or else the first of those whose agents are not silent: a node that was lost says no more that its ranks
// have died.
const v1::RankClaim& Coordinator::WhoseRank(Rank rank, const std::vector<v1::RankClaim>& waiting) const {
  const auto known = claims_.find(rank);
  const v1::RankClaim* owner = nullptr;
  const v1::RankClaim* first = nullptr;
  for (const v1::RankClaim& claim : waiting) {
    uint64_t heard = 0;
    if (known != claims_.end() && claim.ticket() == known->second.ticket()) owner = &claim;
    if (first == nullptr && reports_.Silent(claim.agent(), &heard) <= kSilent) first = &claim;
  }
  uint64_t heard = 0;
  const bool speaks = owner != nullptr && reports_.Silent(owner->agent(), &heard) <= kSilent;
  if (speaks || first == nullptr) return owner != nullptr ? *owner : waiting.front();
  return *first;
}

// That `claim` still waits, since `other` was there: its node lives.
bool Coordinator::SaidAgain(const v1::RankClaim& claim, Ticket other) {
  const v1::Report& last = *reports_.by_agent().at(claim.agent());
  const std::pair said(last.incarnation(), last.seq());
  return contested_.try_emplace(other, said).first->second != said;
}

// Only beside the rank 0 that opened the attempt. One that a restarted agent resumed may be of a call that nobody makes
// any more; who joins for the next call before its rank 0 does is not to be measured by it.
bool Coordinator::AgreeOnWorldAndWant() {
  if (claims_.count(0) == 0) return true;
  for (const auto& [agent, report] : reports_.by_agent()) {
    for (const v1::RankReport& facts : report->ranks()) {
      const auto claim = claims_.find(facts.rank());
      if (claim == claims_.end() || claim->second.ticket() != facts.ticket()) continue;
      const bool world = facts.world_size() == world_size_ && facts.rank() < world_size_;
      const bool want = facts.want().kind() == want_.kind() && facts.want().step() == want_.step();
      if (world && want) continue;
      RefuseAll(ErrorCode::RANKS_DISAGREE,
                world ? absl::StrCat(Prefix(), "rank ", facts.rank(), " and rank 0 ask restore() for different steps")
                      : absl::StrCat(Prefix(), "rank ", facts.rank(), " says world size ", facts.world_size(),
                                     ", rank 0 says ", world_size_));
      return false;
    }
  }
  return true;
}

// As many claims as ranks are not enough: before the rank 0 of another world size is here, ranks of that world may
// stand beside a world size that is the last one's.
bool Coordinator::EveryRankClaimed() const {
  return world_size_ != 0 && claims_.size() == world_size_ && claims_.rbegin()->first == world_size_ - 1;
}

void Coordinator::TryDecide() {
  if (given_up_) return;
  CollectClaims();
  if (!AgreeOnWorldAndWant()) return;
  if (!EveryRankClaimed() || unsettled_) return;
  if (!reports_.AllMembersReported() && !gather_over_) return;
  const absl::StatusOr<Choice> choice = Choose(TakeInventory(), context_.config.rules);
  if (!choice.ok()) return RefuseAll(CodeOf(choice.status()), std::string(choice.status().message()));
  CreateDecision request;
  request.decision.set_job(context_.config.job);
  request.decision.set_attempt(attempt_);
  const v1::DecisionRecord* base = NewestBefore(decisions_, attempt_);
  SetParent(base == nullptr ? v1::DecisionRecord() : *base, choice->parent, &request.decision);
  FillWorlds(decisions_, &request.decision);
  for (const auto& [rank, claim] : claims_) *request.decision.add_ranks() = claim;
  for (const v1::SkippedStep& skipped : choice->skipped) *request.decision.add_skipped() = skipped;
  if (!context_.config.rules.reuse_decision_file) decision_ = request.decision;
  To(Trigger::kChosen);
  op_ = context_.Request(std::move(request));
}

Inventory Coordinator::TakeInventory() const {
  Inventory inventory;
  inventory.job = context_.config.job;
  inventory.attempt = attempt_;
  inventory.want = want_;
  inventory.world_size = world_size_;
  inventory.decisions = decisions_;
  inventory.unreadable = {unreadable_.begin(), unreadable_.end()};
  inventory.steps = steps_;
  inventory.excluded = excluded_;
  inventory.excluded_copies = excluded_copies_;
  inventory.sealed.resize(world_size_);
  if (context_.config.copying()) inventory.copied.resize(world_size_);
  for (const auto& [agent, report] : reports_.by_agent()) {
    inventory.answered[agent] = {report->region_id(), report->lost()};
    for (const v1::RankReport& facts : report->ranks()) {
      const auto claim = claims_.find(facts.rank());
      const bool serves = claim != claims_.end() && claim->second.agent() == agent;
      for (const v1::SnapshotRef& ref : facts.sealed()) {
        if (serves) inventory.sealed[facts.rank()].insert(ToId(ref));
        if (!serves) AddElsewhere(facts.rank(), ToId(ref), agent, &inventory);
      }
      for (const v1::SnapshotRef& ref : facts.quarantined()) inventory.quarantined.insert(ToId(ref));
    }
    for (const v1::HeldCopies& held : report->copies()) {
      for (const v1::SnapshotRef& ref : held.complete()) AddElsewhere(held.rank(), ToId(ref), agent, &inventory);
    }
  }
  if (!context_.config.copying()) return inventory;
  const HadBySnapshot had = WhoHasWhat(reports_.by_agent(), [](const std::string&) { return true; });
  AddRebuildable(had, &inventory);
  AddSilentMembers(&inventory);
  AddLosses(had, &inventory);
  return inventory;
}

// What is known of who protects whom is of the attempt before.
void Coordinator::AddLosses(const HadBySnapshot& had, Inventory* inventory) const {
  std::set<SnapshotId> ids;
  for (const auto& sealed : inventory->sealed) ids.insert(sealed.begin(), sealed.end());
  for (const auto& copied : inventory->copied) ids.insert(copied.begin(), copied.end());
  const v1::DecisionRecord* before = NewestBefore(decisions_, attempt_);
  LossFacts facts{reports_.by_agent(), had, {}, {}, context_.config.copies, context_.config.parity};
  AttemptId known = 0;
  for (const SnapshotId& id : ids) {
    std::set<Rank> lacking;
    for (Rank rank = 0; rank < world_size_; ++rank) {
      if (inventory->sealed[rank].count(id) == 0 && inventory->copied[rank].count(id) == 0) lacking.insert(rank);
    }
    if (lacking.empty()) continue;
    if (std::exchange(known, id.attempt) != id.attempt) {
      facts.node_of = NodesIn(id.attempt);
      facts.groups = before != nullptr && before->attempt() == id.attempt ? groups_ : Groups();
    }
    inventory->losses[id] = TellLosses(facts, id, lacking);
  }
}

std::map<Rank, std::string> Coordinator::NodesIn(AttemptId attempt) const {
  for (const v1::DecisionRecord& decision : decisions_) {
    if (decision.attempt() == attempt) return NodesOf(decision);
  }
  return {};
}

// Whatever this coordinator's configuration protects by now: parity may be of one before.
void Coordinator::AddRebuildable(const HadBySnapshot& had, Inventory* inventory) const {
  for (const auto& [rank, ids] : Rebuildable(had, context_.config.rules)) {
    if (rank < world_size_) inventory->copied[rank].insert(ids.begin(), ids.end());
  }
}

// With copies on, agents give each other what they have of any rank.
void Coordinator::AddElsewhere(Rank rank, const SnapshotId& id, const std::string& agent, Inventory* inventory) const {
  if (context_.config.copying() && rank < world_size_) {
    inventory->copied[rank].insert(id);
  } else {
    inventory->elsewhere[id] = agent;
  }
}

// No record says who may hold copies.
void Coordinator::AddSilentMembers(Inventory* inventory) const {
  for (const std::string& agent : context_.config.members) {
    if (!reports_.Has(agent)) inventory->silent.insert(agent);
  }
}

void Coordinator::On(const DecisionCreated& event) {
  if (event.op != op_ || phase_ != Phase::kDeciding) return;
  if (!event.status.ok()) return StoreFailed(event.status, "writing the decision");
  if (context_.config.rules.reuse_decision_file) decision_ = event.decision;
  decided_ = true;
  To(Trigger::kDecided);
  if (!context_.config.rules.check_after_decision) {
    To(Trigger::kStillNewest);
    return EnterLoad();
  }
  op_ = context_.Request(CheckNewest{});
}

void Coordinator::RefuseTickets(ErrorCode code, const std::string& message, const std::vector<Ticket>& tickets) {
  v1::Refusal& refusal = refusals_.emplace_back();
  refusal.set_code(static_cast<uint32_t>(code));
  refusal.set_message(message);
  for (const Ticket ticket : tickets) {
    refusal.add_tickets(ticket);
    refused_.insert(ticket);
  }
  dirty_ = true;
}

void Coordinator::RefuseAll(ErrorCode code, const std::string& message) {
  std::vector<Ticket> tickets{ticket_};
  for (const auto& [rank, claim] : claims_) {
    if (rank != 0) tickets.push_back(claim.ticket());
  }
  RefuseTickets(code, message, tickets);
  last_error_ = message;
  given_up_ = true;
}

void Coordinator::DecideTimeout(AttemptId attempt) {
  if (attempt != attempt_ || (phase_ != Phase::kGather && !surveying_)) return;
  gather_over_ = true;
}

std::string Coordinator::Prefix() const {
  return absl::StrCat("job ", context_.config.job, " attempt ", attempt_, ": ");
}

}  // namespace ckptd::job
