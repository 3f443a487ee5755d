#include "daemon/app/rank_fetch.h"

#include <utility>

#include "daemon/app/peer_links.h"
#include "daemon/app/storage_copy.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

absl::StatusOr<FetchedSlot> FetchInto(Store& store, const std::string& job, Rank rank, const SnapshotId& id,
                                      region::SlotFile& file, uint64_t slot_bytes) {
  CKPTD_RETURN_IF_ERROR(CKPTD_FP_STATUS("fetch.begin"));
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, CommittedSidecar(store, job, id, rank));
  if (sidecar.slot_bytes() != slot_bytes) return Error(ErrorCode::CORRUPT, "the sidecar changed under the fetch");
  CheckedReadOptions options;
  options.sink = [&file](uint64_t offset, std::span<const std::byte> bytes) { return file.Write(offset, bytes); };
  CKPTD_RETURN_IF_ERROR(ReadChecked(store, ToStoredRank(job, sidecar), options));
  CKPTD_FP("fetch.end");
  FetchedSlot fetched;
  fetched.snapshot = id;
  fetched.parent = {sidecar.parent_attempt(), sidecar.parent_step()};
  fetched.chunk_crcs.assign(sidecar.chunk_crc32c().begin(), sidecar.chunk_crc32c().end());
  fetched.trace = sidecar.trace_id();
  fetched.captured_unix_ns = sidecar.captured_unix_ns();
  return fetched;
}

// A read that fails once need not fail again, and the step before costs the training since then. What is damaged
// stays so.
absl::StatusOr<FetchedSlot> FetchTwice(Store& store, const std::string& job, Rank rank, const SnapshotId& id,
                                       region::SlotFile& file, uint64_t slot_bytes) {
  auto fetched = FetchInto(store, job, rank, id, file, slot_bytes);
  if (CodeOf(fetched.status()) != ErrorCode::STORAGE_IO) return fetched;
  Log(kWarning, "fetch.again").Job(job).Rank(rank).Snapshot(id).Error(fetched.status());
  return FetchInto(store, job, rank, id, file, slot_bytes);
}

}  // namespace

protect::RebuildEnds RankRunner::EndsOfRebuild() {
  return {services_.loop,
          services_.clock,
          services_.fetch_work,
          {services_.agent_id, options_.job, options_.uid, options_.rank},
          [this] { return services_.links.copies(); },
          [this](Rank rank, const SnapshotId& id) { return services_.keeper.Open(options_.job, rank, id); },
          [this](const protect::ParityPlace& place, const SnapshotId& id) {
            return services_.keeper.OpenParity(options_.job, place, id);
          },
          [this] { return seen_.load(); },
          [this](const SnapshotId& id) { return OnStorage(id); }};
}

std::unique_ptr<protect::StoredCopy> RankRunner::OnStorage(const SnapshotId& id) {
  return std::make_unique<StorageCopy>(services_, options_.job, options_.rank, id);
}

// Whoever waits for this rank does so as long as its state is being read. That ends: storage.timeout sees to the
// storage, and each transfer to the other node. To wait for memory may not.
void RankRunner::TellReading() {
  if (std::exchange(tells_reading_, true)) return;
  auto pulse = [this] {
    tells_reading_ = false;
    const snapshot::View view = machine_.view();
    if (!view.reading) return;
    TellReading();
    if (!intake_.waits_for_room()) Feed(snapshot::LoadGoesOn{view.seen, view.ticket});
  };
  services_.loop.After(kReadingPulse, scope_.Bind([this, pulse] { options_.enqueue(pulse); }));
}

void RankFetch::Find(const snapshot::FindLayout& e) const {
  runner.TellReading();
  if (e.sources.agents.empty()) return FindLayoutByParity(e);
  RankRunner* self = &runner;
  runner.copy_fetch_.Describe({e.snapshot, e.sources.agents},
                              [self, e](const absl::StatusOr<v1::DescribeResponse>& copy) {
                                self->options_.enqueue([self, e, copy] {
                                  const RankFetch effects{*self};
                                  if (!copy.ok()) return effects.FindLayoutByParity(e);
                                  effects.PlaceLayoutOf(e.snapshot, *copy);
                                });
                              });
}

void RankFetch::FindLayoutByParity(const snapshot::FindLayout& e) const {
  if (e.sources.parity == nullptr) return FindLayoutOnStorage(e);
  RankRunner* self = &runner;
  runner.parity_fetch_.Describe({e.snapshot, e.sources.parity},
                                [self, e](const absl::StatusOr<v1::DescribeResponse>& told) {
                                  self->options_.enqueue([self, e, told] {
                                    const RankFetch effects{*self};
                                    if (told.ok()) return effects.PlaceLayoutOf(e.snapshot, *told);
                                    effects.NotByParity(e.snapshot, told.status());
                                    effects.FindLayoutOnStorage(e);
                                  });
                                });
}

void RankFetch::NotByParity(const SnapshotId& snapshot, const absl::Status& why) const {
  Log(kWarning, "parity.not_rebuilt").Job(runner.options_.job).Rank(runner.options_.rank).Snapshot(snapshot).Error(why);
}

void RankFetch::PlaceLayoutOf(const SnapshotId& snapshot, const v1::DescribeResponse& copy) const {
  LayoutIntake::Order order;
  order.world = copy.world_size();
  order.chunk_bytes = copy.layout().chunk_bytes();
  order.preparation = region::Preparation::kReserved;
  order.facts = {protect::ExtentsOf(copy.layout()), copy.layout().header_crc(), 0};
  order.done = WhenPlaced(snapshot);
  runner.intake_.Take(std::move(order));
}

void RankFetch::FindLayoutOnStorage(const snapshot::FindLayout& e) const {
  RankRunner* self = &runner;
  using Read = absl::StatusOr<v1::Sidecar>;
  RunAsync<Read>(
      runner.services_.loop, runner.services_.fetch_work,
      [&store = runner.services_.restore_store, job = runner.options_.job, id = e.snapshot,
       rank = runner.options_.rank] { return CommittedSidecar(store, job, id, rank); },
      runner.scope_.Bind([self, e](const Read& read) {
        self->options_.enqueue([self, e, read] { RankFetch{*self}.PlaceLayout(e.snapshot, read); });
      }));
}

void RankFetch::PlaceLayout(const SnapshotId& snapshot, absl::StatusOr<v1::Sidecar> sidecar) const {
  if (!sidecar.ok()) return runner.Feed(snapshot::LayoutFound{snapshot, 0, sidecar.status()});
  LayoutIntake::Order order;
  order.world = sidecar->world_size();
  order.chunk_bytes = sidecar->chunk_bytes();
  order.preparation = region::Preparation::kReserved;
  order.headers = [&store = runner.services_.restore_store, job = runner.options_.job, side = *sidecar] {
    return ReadHeaders(store, job, side, uint64_t{512} << 20);
  };
  order.done = WhenPlaced(snapshot);
  runner.intake_.Take(std::move(order));
}

std::function<void(absl::StatusOr<region::LayoutSet*>, bool)> RankFetch::WhenPlaced(const SnapshotId& snapshot) const {
  RankRunner* self = &runner;
  return [self, snapshot](absl::StatusOr<region::LayoutSet*> set, bool) {
    uint32_t layout = set.ok() ? (*set)->layout() : 0;
    uint32_t slots = set.ok() ? (*set)->slot_count() : 0;
    self->options_.enqueue([self, snapshot, layout, slots, status = set.status()] {
      if (status.ok()) self->Feed(snapshot::LayoutAdded{layout, slots});
      self->Feed(snapshot::LayoutFound{snapshot, layout, status});
    });
  };
}

void RankFetch::Fetch(const snapshot::Fetch& e) const {
  runner.TellReading();
  region::LayoutSet* set = runner.Set(e.slot);
  std::shared_ptr<region::SlotFile> file = set == nullptr ? nullptr : set->FileOf(e.slot.index);
  if (!file) return runner.Feed(snapshot::Fetched{e.slot, e.snapshot, Error(ErrorCode::INTERNAL, "no slot file")});
  if (e.sources.agents.empty()) return FetchByParity(e);
  RankRunner* self = &runner;
  const AttemptId attempt = runner.machine_.view().seen;
  runner.copy_fetch_.Fetch({e.snapshot, e.sources.agents}, {set->head(), file},
                           [self, e, attempt](const absl::StatusOr<protect::CopyFetch::Brought>& brought) {
                             self->options_.enqueue([self, e, attempt, brought] {
                               const RankFetch effects{*self};
                               if (!brought.ok() && effects.IsOver(attempt, e, brought.status())) return;
                               if (!brought.ok()) return effects.FetchByParity(e);
                               effects.FetchedFromOthers(e, *brought, snapshot::Source::kReplica);
                             });
                           });
}

// Whoever has it refuses who asks for an attempt that is over. The next one asks them anew before the storage.
bool RankFetch::IsOver(AttemptId attempt, const snapshot::Fetch& e, const absl::Status& why) const {
  if (runner.machine_.view().seen == attempt) return false;
  runner.Feed(snapshot::Fetched{e.slot, e.snapshot, why});
  return true;
}

void RankFetch::FetchByParity(const snapshot::Fetch& e) const {
  region::LayoutSet* set = runner.Set(e.slot);
  std::shared_ptr<region::SlotFile> file = set == nullptr ? nullptr : set->FileOf(e.slot.index);
  if (e.sources.parity == nullptr || file == nullptr) return FetchFromStorage(e);
  RankRunner* self = &runner;
  const AttemptId attempt = runner.machine_.view().seen;
  runner.parity_fetch_.Fetch({e.snapshot, e.sources.parity}, {set->head(), file},
                             [self, e, attempt](const absl::StatusOr<v1::CopyRecord>& record) {
                               self->options_.enqueue([self, e, attempt, record] {
                                 const RankFetch effects{*self};
                                 if (record.ok())
                                   return effects.FetchedFromOthers(e, {*record}, snapshot::Source::kParity);
                                 effects.NotByParity(e.snapshot, record.status());
                                 self->metrics_.Fetched(record.status(), 0, "parity");
                                 if (effects.IsOver(attempt, e, record.status())) return;
                                 effects.FetchFromStorage(e);
                               });
                             });
}

void RankFetch::FetchedFromOthers(const snapshot::Fetch& e, const protect::CopyFetch::Brought& brought,
                                  snapshot::Source source) const {
  const region::LayoutSet* set = runner.Set(e.slot);
  if (set == nullptr) return;
  const v1::CopyRecord& record = brought.record;
  FetchedSlot& fetched = runner.fetched_[e.slot];
  fetched.snapshot = e.snapshot;
  fetched.parent = {record.parent().attempt(), record.parent().step()};
  fetched.chunk_crcs.assign(record.chunk_crc().begin(), record.chunk_crc().end());
  fetched.trace = record.trace();
  fetched.captured_unix_ns = static_cast<int64_t>(record.captured_unix_ns());
  const uint64_t from_others = set->head().block.slot_bytes - brought.from_storage;
  const char* tier = source == snapshot::Source::kParity ? "parity" : "peers";
  runner.metrics_.Fetched(absl::OkStatus(), from_others, tier);
  runner.metrics_.Fetched(absl::OkStatus(), brought.from_storage);
  if (!brought.storage.ok()) runner.metrics_.Fetched(brought.storage, 0);
  if (from_others == 0) source = snapshot::Source::kStorage;
  runner.Feed(snapshot::Fetched{e.slot, e.snapshot, absl::OkStatus(), source, false});
}

void RankFetch::FetchFromStorage(const snapshot::Fetch& e) const {
  region::LayoutSet* set = runner.Set(e.slot);
  std::shared_ptr<region::SlotFile> file = set == nullptr ? nullptr : set->FileOf(e.slot.index);
  if (!file) return runner.Feed(snapshot::Fetched{e.slot, e.snapshot, Error(ErrorCode::INTERNAL, "no slot file")});
  RankRunner* self = &runner;
  using Result = absl::StatusOr<FetchedSlot>;
  uint64_t slot_bytes = set->head().block.slot_bytes;
  RunAsync<Result>(
      runner.services_.loop, runner.services_.fetch_work,
      [&store = runner.services_.restore_store, job = runner.options_.job, rank = runner.options_.rank, id = e.snapshot,
       file, slot_bytes] { return FetchTwice(store, job, rank, id, *file, slot_bytes); },
      runner.scope_.Bind([self, e, slot_bytes](const Result& result) {
        self->options_.enqueue([self, e, slot_bytes, result] {
          self->metrics_.Fetched(result.status(), slot_bytes);
          if (result.ok()) self->fetched_[e.slot] = *result;
          self->Feed(snapshot::Fetched{e.slot, e.snapshot, result.status()});
        });
      }));
}

}  // namespace ckptd
