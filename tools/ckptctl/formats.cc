#include "tools/ckptctl/formats.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/base/units.h"
#include "tools/ckptctl/output.h"
#include "tools/ckptctl/peers_line.h"

namespace ckptd {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c == '_' ? ' ' : std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool StorageFails(v1::StorageStatus::State state) {
  return state == v1::StorageStatus::FULL || state == v1::StorageStatus::READ_ONLY ||
         state == v1::StorageStatus::FAILING || state == v1::StorageStatus::HUNG;
}

std::string AgentLines(const v1::AgentStatus& agent) {
  std::string out = absl::StrCat("agent    ", agent.node(), "  ckptd ", agent.version(), "  pid ", agent.pid(), "  up ",
                                 FormatDuration(Seconds(agent.uptime_seconds())), "  ",
                                 Count(agent.sessions(), "trainer"), " connected");
  if (agent.draining()) absl::StrAppend(&out, "  ", Coloured(Tone::kWarn, "DRAINING: new saves are refused"));
  absl::StrAppend(&out, "\n");
  const v1::RegionStatus& region = agent.region();
  absl::StrAppend(&out, "region   ", region.dir(), "  ", FormatBytes(region.used_bytes()), " of ",
                  FormatBytes(region.size_bytes()), " used, ", FormatBytes(region.free_bytes()), " free",
                  region.may_swap() ? Coloured(Tone::kWarn, "  may go to swap: run the node without") : "", "\n");
  const v1::StorageStatus& storage = agent.storage();
  absl::StrAppend(&out, "storage  ", storage.root());
  if (storage.state() != v1::StorageStatus::UNKNOWN) {
    const std::string state = Lower(v1::StorageStatus::State_Name(storage.state()));
    absl::StrAppend(&out, "  ", Coloured(StorageFails(storage.state()) ? Tone::kBad : Tone::kGood, state));
  }
  absl::StrAppend(&out, "  ", storage.io());
  if (storage.free_bytes() != 0) absl::StrAppend(&out, "  ", FormatBytes(storage.free_bytes()), " free");
  const uint32_t flushes = storage.flushes_running();
  if (flushes != 0) absl::StrAppend(&out, "  ", Count(flushes, "snapshot"), " being flushed");
  absl::StrAppend(&out, "\n");
  if (!storage.last_error().empty()) {
    absl::StrAppend(&out, "         ", Coloured(Tone::kBad, Clean(storage.last_error())), "\n");
  }
  absl::StrAppend(&out, PeersLine(agent.peers()), HeldLines(agent.peers()));
  for (const v1::Problem& problem : agent.problems()) {
    absl::StrAppend(&out, "problem  ", Coloured(Tone::kBad, Clean(problem.text())),
                    "\n           next: ", Clean(problem.next_step()), "\n");
  }
  for (const std::string& note : agent.notes()) absl::StrAppend(&out, "note     ", Clean(note), "\n");
  return out;
}

const v1::StepStatus* FindStep(const v1::JobStatus& job, uint64_t attempt, uint64_t step) {
  for (const v1::StepStatus& each : job.steps()) {
    if (each.attempt() == attempt && each.step() == step) return &each;
  }
  return nullptr;
}

std::string StepLine(const v1::JobStatus& job, const char* what, uint64_t attempt, uint64_t number) {
  if (attempt == 0) return absl::StrFormat("  %-9s none yet\n", what);
  std::string out = absl::StrFormat("  %-9s step %d", what, number);
  if (attempt != job.attempt()) absl::StrAppend(&out, " of attempt ", attempt);
  const v1::StepStatus* step = FindStep(job, attempt, number);
  if (step != nullptr && step->age_seconds() > 0) absl::StrAppend(&out, ", ", FormatAge(step->age_seconds()));
  if (step != nullptr && step->bytes() != 0) absl::StrAppend(&out, ", ", FormatBytes(step->bytes()));
  if (step != nullptr && step->pinned()) absl::StrAppend(&out, ", pinned");
  return out + "\n";
}

std::string SlotText(const v1::SlotStatus& slot) {
  std::string out = Lower(v1::SlotStatus::State_Name(slot.state()));
  if (slot.step() != 0) absl::StrAppend(&out, " ", slot.step());
  if (slot.state() == v1::SlotStatus::SEALED && slot.rescued()) absl::StrAppend(&out, " rescued");
  if (slot.state() == v1::SlotStatus::SEALED && slot.persisted()) absl::StrAppend(&out, "+disk");
  return out;
}

std::string RankTable(const v1::JobStatus& job) {
  Table table({"RANK", "PID", "STATE", "STEP", "SLOTS", "LAST DROP"});
  for (const v1::RankStatus& rank : job.ranks()) {
    std::vector<std::string> slots;
    for (const v1::SlotStatus& slot : rank.slots()) slots.push_back(SlotText(slot));
    std::string state = Lower(v1::RankStatus::TicketState_Name(rank.ticket()));
    if (rank.ticket() != v1::RankStatus::NONE && !rank.connected()) absl::StrAppend(&state, " (away)");
    std::string drop = rank.last_drop().empty() ? "-" : absl::StrCat(rank.last_drop(), " at ", rank.last_drop_step());
    table.Add({absl::StrCat(rank.rank()), rank.pid() == 0 ? "-" : absl::StrCat(rank.pid()), state,
               absl::StrCat(rank.position()), slots.empty() ? "-" : absl::StrJoin(slots, ", "), drop});
  }
  return table.empty() ? "" : table.Text("  ");
}

std::string LossText(double loss) { return absl::StrFormat("%.1f %%", loss * 100); }

std::string GpuText(const v1::DeviceStatus& gpu) {
  std::string out = absl::StrCat(gpu.uuid(), " ", Lower(v1::DeviceStatus::Path_Name(gpu.path())));
  if (gpu.copier_pid() != 0) absl::StrAppend(&out, " by ", gpu.copier_pid());
  absl::StrAppend(&out, ", ", FormatBytes(gpu.bytes()));
  if (gpu.samples() != 0) {
    absl::StrAppend(&out, ", costs ", LossText(gpu.push_loss()), " of a step by push and ", LossText(gpu.pull_loss()),
                    " by pull");
  }
  if (!gpu.why().empty()) absl::StrAppend(&out, " (", Clean(gpu.why()), ")");
  return out;
}

std::string PinText(const v1::DevicesStatus& devices) {
  if (devices.waits_to_pin()) return "waits for another trainer to pin its memory";
  if (!devices.pin_error().empty()) return Coloured(Tone::kWarn, "not pinned: " + Clean(devices.pin_error()));
  if (devices.pinned_bytes() == 0) return "not pinned yet";
  std::string out =
      absl::StrCat(FormatBytes(devices.pinned_bytes()), " pinned in ", FormatDuration(Seconds(devices.pin_seconds())));
  if (devices.longest_step_seconds() > 0) {
    absl::StrAppend(&out, ", longest step meanwhile ", FormatDuration(Seconds(devices.longest_step_seconds())));
  }
  return out;
}

// Of ranks with tensors on GPUs: one line for the rank, one for each GPU.
std::string GpuLines(const v1::JobStatus& job) {
  std::string out;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.has_devices()) continue;
    absl::StrAppend(&out, "  gpu       rank ", rank.rank(), ": ", PinText(rank.devices()), "\n");
    for (const v1::DeviceStatus& gpu : rank.devices().gpus()) {
      absl::StrAppend(&out, "            ", GpuText(gpu), "\n");
    }
  }
  return out;
}

// Of ranks whose trainer is to be rescued when it dies.
std::string RescueLines(const v1::JobStatus& job) {
  std::string out;
  for (const v1::RankStatus& rank : job.ranks()) {
    const v1::RescueStatus& rescue = rank.rescue();
    if (!rescue.armed() && rescue.why().empty()) continue;
    absl::StrAppend(&out, "  rescue    rank ", rank.rank(), ": ",
                    rescue.armed()
                        ? absl::StrCat("ready, takes at most ", FormatDuration(Seconds(rescue.hold_seconds())))
                        : Coloured(Tone::kWarn, "not ready: " + Clean(rescue.why())),
                    "\n");
  }
  return out;
}

// What survives the loss of nodes without the storage; nothing where nodes hold nothing for each other.
std::string ProtectedLine(const v1::JobStatus& job) {
  if (job.copies() < 2 && job.parity() == 0) return "";
  std::string out = StepLine(job, "protected", job.protected_attempt(), job.protected_step());
  out.pop_back();
  if (job.parity() == 0) {
    absl::StrAppend(&out, "  on ", Count(job.copies(), "node"));
  } else {
    absl::StrAppend(&out, "  by parity: any ", Count(job.parity(), "node"), " of each group may be lost");
  }
  if (job.protection_lost()) absl::StrAppend(&out, "  ", Coloured(Tone::kWarn, "a node with a part of it is lost"));
  return out + "\n";
}

std::string JobLines(const v1::JobStatus& job) {
  std::string out = absl::StrCat("\njob      ", Coloured(Tone::kStrong, job.name()), "  ",
                                 Lower(v1::JobStatus::State_Name(job.state())), "  attempt ", job.attempt());
  if (job.parent_attempt() != 0) {
    absl::StrAppend(&out, " from step ", job.parent_step(), " of attempt ", job.parent_attempt());
  }
  absl::StrAppend(&out, "  ", Count(job.world_size(), "rank"), "  ", FormatBytes(job.region_bytes()), " of memory\n",
                  StepLine(job, "captured", job.watermark_attempt(), job.watermark_step()), ProtectedLine(job),
                  StepLine(job, "durable", job.durable_attempt(), job.durable_step()));
  if (job.saves().dropped() != 0) {
    absl::StrAppend(&out, "  dropped   ", job.saves().dropped(), " of ", job.saves().captured() + job.saves().dropped(),
                    " saves\n");
  }
  if (!job.last_error().empty()) {
    absl::StrAppend(&out, "  error     ", Coloured(Tone::kBad, Clean(job.last_error())), "\n");
  }
  return out + RankTable(job) + GpuLines(job) + RescueLines(job);
}

std::string StateOf(const v1::SnapshotEntry& entry) {
  std::string state = entry.durable() ? "durable" : entry.captured() ? "captured" : "partial";
  if (entry.deleting()) state = "deleting";
  if (!entry.on_lineage()) state += ", left behind";
  return state;
}

std::string Shape(const google::protobuf::RepeatedField<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsShard(const v1::TensorEntry& tensor) {
  return !std::equal(tensor.shape().begin(), tensor.shape().end(), tensor.global_shape().begin(),
                     tensor.global_shape().end());
}

// "always", "93.3333 %", "never": never rounded to what it is not.
std::string Chance(double survival, bool always) {
  if (always) return "always";
  if (survival <= 0) return "never";
  if (survival > 0.9999995) return "> 99.9999 %";
  return survival < 0.0000005 ? "< 0.0001 %" : absl::StrFormat("%.4f %%", survival * 100);
}

std::string OnceIn(double survival, bool always) {
  if (always) return "-";
  const double loss = 1 - survival;
  if (loss < 1e-12) return "> 1e+12";  // of a number near 1 no more digits are right
  if (loss < 1e-6) return absl::StrFormat("%.3g", 1 / loss);
  return loss > 0.01 ? absl::StrFormat("%.1f", 1 / loss) : absl::StrFormat("%.0f", 1 / loss);
}

std::string PlanHead(const v1::Plan& plan) {
  std::string out = plan.scheme();
  if (plan.has_copies()) absl::StrAppend(&out, ", ", plan.copies(), " copies");
  if (plan.has_data()) absl::StrAppend(&out, " ", plan.data(), "+", plan.parity());
  absl::StrAppend(&out, ", ", Count(plan.nodes(), "node"));
  std::vector<std::string> groups;
  for (const v1::PlanGroups& each : plan.groups()) {
    groups.push_back(absl::StrCat(Count(each.count(), "group"), " of ", each.members()));
  }
  if (plan.scheme() != "none") absl::StrAppend(&out, " in ", absl::StrJoin(groups, " and "));
  return out + "\n\n";
}

// One loss, two, up to nine while any are survived, and as many as were asked for.
std::string PlanSurvival(const v1::Plan& plan) {
  Table table({"NODES LOST", "MEMORY SURVIVES", "ELSE ONCE IN"});
  auto add = [&](uint32_t lost, double survival) {
    const bool always = lost <= plan.always_survives();
    table.Add({absl::StrCat(lost), Chance(survival, always), OnceIn(survival, always)});
  };
  const int listed = std::min({plan.survival_by_lost_size(), 10, static_cast<int>(plan.lost())});
  for (int lost = 1; lost < listed && plan.survival_by_lost(lost) > 0; ++lost) {
    add(static_cast<uint32_t>(lost), plan.survival_by_lost(lost));
  }
  add(plan.lost(), plan.survival());
  std::string out = table.Text();
  if (plan.has_survival_at_probability()) {
    const bool always = plan.node_loss_probability() == 0;
    absl::StrAppendFormat(&out, "each node with probability %.3g: %s, else once in %s\n", plan.node_loss_probability(),
                          Chance(plan.survival_at_probability(), always),
                          OnceIn(plan.survival_at_probability(), always));
  }
  return out + "\n";
}

std::string PlanCost(const v1::Plan& plan) {
  Table table({"EACH NODE", "BYTES", "TIMES WHAT IT SAVES"});
  auto add = [&](const char* what, uint64_t bytes, double factor, const std::string& how) {
    table.Add({what, plan.has_bytes() ? FormatBytes(bytes) : "-", absl::StrFormat("%.4g %s", factor, how)});
  };
  add("memory", plan.memory_bytes_per_node(), plan.memory_factor(), "in " + Count(plan.slots(), "version"));
  add("traffic", plan.traffic_bytes_per_save(), plan.traffic_factor(), "sent for a save, as much received");
  add("rebuild", plan.rebuild_bytes(), plan.rebuild_factor(), "read from others when it is lost");
  return table.Text() + (plan.has_bytes() ? "" : "in bytes: with --bytes, what one node saves\n");
}

std::string PlanRacks(const v1::Plan& plan) {
  if (!plan.has_nodes_per_rack()) return "";
  std::string out = absl::StrCat("racks of ", Count(plan.nodes_per_rack(), "node"), ": any one may fail");
  if (!plan.survives_one_rack()) {
    out = absl::StrCat("racks of ", Count(plan.nodes_per_rack(), "node"), ": ",
                       Coloured(Tone::kBad, "one that fails may take snapshots with it"));
  }
  if (plan.shared_racks() == 0) return out + "\n\n";
  return absl::StrCat(out, "; ", plan.shared_racks(), " times one rack has two or more that should be apart\n\n");
}

}  // namespace

std::string FormatAge(double seconds) { return absl::StrCat(FormatDuration(Seconds(std::max(0.0, seconds))), " ago"); }

std::string FormatStatus(const v1::StatusView& view) {
  std::string out = AgentLines(view.agent());
  for (const v1::JobStatus& job : view.jobs()) absl::StrAppend(&out, JobLines(job));
  if (view.jobs().empty()) absl::StrAppend(&out, "\nno jobs\n");
  return out;
}

bool IsHealthy(const v1::StatusView& view) {
  return view.agent().problems().empty() && !StorageFails(view.agent().storage().state());
}

std::string FormatList(const v1::ListResponse& list, int64_t now_unix_ns) {
  Table table({"JOB", "STEP", "ATTEMPT", "STATE", "SOURCE", "SIZE", "RANKS", "AGE", "PINNED"});
  for (const v1::SnapshotEntry& entry : list.snapshots()) {
    const double age = static_cast<double>(now_unix_ns - entry.created_unix_ns()) / 1e9;
    table.Add({entry.job(), absl::StrCat(entry.step()), absl::StrCat(entry.attempt()), StateOf(entry),
               absl::StrJoin(entry.sources(), "+"), FormatBytes(entry.bytes()), absl::StrCat(entry.world_size()),
               entry.created_unix_ns() == 0 ? "-" : FormatAge(age), entry.pinned() ? "yes" : "-"});
  }
  if (table.empty()) return list.errors().empty() ? "no steps\n" : "";
  return table.Text() + (list.truncated() ? "… older ones are left out: name a job\n" : "");
}

std::string FormatTensors(const v1::InspectResponse& response) {
  Table table({"RANK", "NAME", "DTYPE", "SHAPE", "BYTES", "SHARD", "ALIASES"});
  uint64_t bytes = 0;
  for (const v1::TensorEntry& tensor : response.tensors()) {
    bytes += tensor.bytes();
    std::string shard = "-";
    if (IsShard(tensor))
      shard = absl::StrCat("at ", Shape(tensor.global_offset()), " of ", Shape(tensor.global_shape()));
    table.Add({absl::StrCat(tensor.rank()), Clean(tensor.name()), tensor.dtype(), Shape(tensor.shape()),
               absl::StrCat(tensor.bytes()), shard,
               tensor.aliases().empty() ? "-" : Clean(absl::StrJoin(tensor.aliases(), ", "))});
  }
  std::string from = response.source();
  if (response.attempt() != 0) absl::StrAppend(&from, ", step ", response.step(), " of attempt ", response.attempt());
  return absl::StrCat(table.Text(), Count(response.tensors_size(), "tensor"), ", ", FormatBytes(bytes), "  (from ",
                      from, ")\n");
}

std::string FormatDamage(const v1::Damage& damage) {
  std::string where = absl::StrCat(damage.source(), ": rank ", damage.rank(), ": ", Clean(damage.file()));
  if (damage.bytes() != 0) {
    absl::StrAppend(&where, ", bytes ", damage.offset(), " to ", damage.offset() + damage.bytes() - 1);
  }
  return absl::StrCat(where, ": ", Clean(damage.reason()));
}

std::string FormatFlush(const std::string& job, const v1::FlushResponse& flush) {
  if (flush.step() == 0) return absl::StrCat("job ", job, ": nothing is captured yet\n");
  std::string step = absl::StrCat("job ", job, ": step ", flush.step(), " (attempt ", flush.attempt(), ")");
  if (flush.durable()) return step + " is durable\n";
  return absl::StrCat(step, " is not durable yet",
                      flush.waiting_for().empty() ? "" : "; it waits for " + Clean(flush.waiting_for()), "\n");
}

std::string FormatGc(const v1::GcResponse& gc, bool dry_run) {
  Table table({"JOB", "STEP", "SOURCE", "SIZE", "WHAT", "WHY"});
  auto add = [&](const v1::RemovedEntry& entry, const char* what) {
    table.Add({entry.job(), entry.step() == 0 ? "-" : absl::StrCat(entry.step(), ".a", entry.attempt()), entry.source(),
               FormatBytes(entry.bytes()), what, Clean(entry.reason())});
  };
  for (const v1::RemovedEntry& entry : gc.removed()) add(entry, dry_run ? "would go" : "removed");
  for (const v1::RemovedEntry& entry : gc.kept()) add(entry, "kept");
  if (table.empty()) return gc.errors().empty() ? "nothing to look at\n" : "";
  return table.Text();
}

std::string FormatTrace(const v1::TraceResponse& trace) {
  Table table({"SECONDS", "RANK", "PART", "EVENT", "DETAIL"});
  for (const v1::TraceEvent& event : trace.events()) {
    table.Add({absl::StrFormat("%.6f", event.at_seconds()), absl::StrCat(event.rank()), event.part(), event.name(),
               Clean(event.detail())});
  }
  return absl::StrCat(
      absl::StrFormat("trace %016x: step %d of attempt %d\n", trace.trace_id(), trace.step(), trace.attempt()),
      table.Text());
}

std::string FormatPlan(const v1::Plan& plan) {
  return absl::StrCat(PlanHead(plan), PlanSurvival(plan), PlanRacks(plan), PlanCost(plan));
}

}  // namespace ckptd
