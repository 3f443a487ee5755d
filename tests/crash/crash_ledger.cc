#include "tests/crash/crash_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/storage/testing/store_around.h"
#include "tests/crash/crash_disk.h"

namespace ckptd::crash {

void Promise::TellDurable(const SnapshotId& id) {
  if (id.attempt < attempt && id > parent && broken.empty()) {
    broken = absl::StrCat("R2: step ", ToString(id), " was called durable when attempt ", attempt, " stood on ",
                          ToString(parent));
  }
  least = std::max(least, id);
}

void Promise::TellSkipped(const SnapshotId& on) {
  if (!may_skip) return;
  skipped = true;
  least = std::min(least, on);
}

void Promise::TellStanding(AttemptId by, const SnapshotId& on, bool rolled_back) {
  if (by <= attempt) return;
  constexpr StepId kSteps = 10;  // more than any workload saves
  if (rolled_back) {
    least = on;
    back.reset();
  }
  if (on < Least() && broken.empty()) {
    broken = absl::StrCat("R2: restore() gave ", ToString(on), ", ", ToString(least), " was durable");
  }
  for (StepId step = on.step + 1; rolled_back && step < kSteps; ++step) {
    for (AttemptId other = 1; other < by; ++other) undone.insert({other, step});
  }
  attempt = by;
  parent = on;
}

namespace {

// The directories on the way may be made anew as well.
void Coming(const std::string& name, Promise& promise) {
  for (std::string each = name; !each.empty(); each.resize(each.rfind('/') + 1 == 0 ? 0 : each.rfind('/'))) {
    promise.gone.erase(each);
  }
}

void Created(const std::string& name, Promise& promise) {
  if (promise.named.contains(name) && promise.broken.empty()) promise.broken = "replaced: two created " + name;
}

}  // namespace

void Apply(const Fact& fact, Promise& promise) {
  switch (fact.kind) {
    case Fact::kDurable:
      return promise.TellDurable(fact.id);
    case Fact::kBeginRollBack:
      return promise.BeginRollBack(fact.id);
    case Fact::kStanding:
      return promise.TellStanding(fact.attempt, fact.id, false);
    case Fact::kRolledBack:
      return promise.TellStanding(fact.attempt, fact.id, true);
    case Fact::kSkipped:
      return promise.TellSkipped(fact.id);
    case Fact::kComing:
      return Coming(fact.name, promise);
    case Fact::kCreated:
      return Created(fact.name, promise);
    case Fact::kNamed:
      promise.named[fact.name] = fact.hash;
      return;
    case Fact::kLeaving:
      promise.named.erase(fact.name);
      return;
    case Fact::kGone:
      promise.gone.insert(fact.name);
      return;
  }
}

const Promise& Ledger::Walk::At(size_t op) {
  for (; next_ < ledger_.changes_.size() && ledger_.changes_[next_].op <= op; ++next_) {
    ledger_.changes_[next_].change(promise_);
  }
  return promise_;
}

namespace {

class WitnessStore final : public StoreAround {
 public:
  WitnessStore(Store& inner, Witness& witness) : StoreAround(inner), witness_(witness) {}

  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    Tell(Fact::kComing, name);
    absl::Status status = inner_.CreateExclusive(name, bytes);
    if (status.ok()) Tell(Fact::kCreated, name);
    if (status.ok()) Named(name, bytes);
    if (absl::IsAlreadyExists(status)) Named(name, "");
    return status;
  }

  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    Tell(Fact::kComing, name);
    auto writer = inner_.OpenForWrite(name, size);
    if (!writer.ok()) return writer;
    return std::make_unique<Writer>(*std::move(writer), *this, name);
  }

  absl::Status Delete(const std::string& name) override {
    Tell(Fact::kLeaving, name);
    absl::Status status = inner_.Delete(name);
    if (status.ok()) Tell(Fact::kGone, name);
    return status;
  }
  absl::Status DeleteDirectory(const std::string& directory) override {
    absl::Status status = inner_.DeleteDirectory(directory);
    if (status.ok()) Tell(Fact::kGone, directory);
    return status;
  }

 private:
  struct Writer final : WriterAround {
    Writer(std::unique_ptr<PartWriter> inner, WitnessStore& store, std::string name)
        : WriterAround(std::move(inner)), store(store), name(std::move(name)) {}
    absl::Status Finish() override {
      absl::Status status = inner_->Finish();
      if (status.ok() || absl::IsAlreadyExists(status)) store.Named(name, "");
      return status;
    }
    WitnessStore& store;
    const std::string name;
  };

  void Tell(Fact::Kind kind, const std::string& name) { witness_.Hear({.kind = kind, .name = name}); }
  void Named(const std::string& name, absl::string_view bytes) {
    witness_.Hear({.kind = Fact::kNamed, .name = name, .hash = witness_.HashOf(name, bytes)});
  }

  Witness& witness_;
};

}  // namespace

void SimWitness::Hear(const Fact& fact) {
  ledger_.Note(files_.OpCount(), [fact](Promise& promise) { Apply(fact, promise); });
}

uint64_t SimWitness::HashOf(const std::string& name, absl::string_view) {
  return HashOfFile(files_.live(), absl::StrCat(kRoot, "/", name));
}

std::unique_ptr<Store> MakeWitnessStore(Store& inner, Witness& witness) {
  return std::make_unique<WitnessStore>(inner, witness);
}

}  // namespace ckptd::crash
