// What the coordinator of a large job has to do for a restore, also after losses, and for a save where agents keep
// copies for each other: its machine, and what the links do with each message, beside 1,249 and 63 simulated agents.
// The limits are the contract's: a second to decide and to say so to all, 1 GiB of memory.
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/cases.h"
#include "tools/bench/fleet.h"
#include "tools/bench/measure.h"
#include "tools/bench/usage.h"

namespace ckptd::bench {
namespace {

constexpr uint32_t kPerNode = 8;
constexpr uint32_t kCopies = 2;
constexpr uint32_t kData = 6;
constexpr uint32_t kParity = 2;
constexpr uint32_t kFewestNodes = kData + kParity;
constexpr int kSlots = 8;          // of each rank, as many as there can be: losses are told of every step
constexpr uint32_t kBatches = 50;  // half a second, in parts of the 10 ms in which REPORTs are acted upon together
constexpr uint64_t kSaves = 3;
constexpr double kDecisionMs = 1000;
constexpr double kMemoryMiB = 1024;

struct Figures {
  double restore_ms = 0;
  double losses_ms = 0;         // the same, where nodes lost all steps but the stored one: of copies,
  double parity_losses_ms = 0;  // and of parity
  double commit_ms = 0;         // of the slowest save
  double cpu_ms = 0;            // a save
  double memory_mib = 0;
  double sent = 0;  // bytes of STATE a save
  double received = 0;
  double sent_to_restore = 0;
};

double Ms(Nanos span) { return static_cast<double>(span.count()) / 1e6; }

// As many nodes lose their memory at once as nothing survives; all ranks restart, and every step that they had is told
// of.
absl::StatusOr<double> MeasureLosses(const Fleet::Options& options) {
  Fleet fleet(options);
  fleet.Restore();
  fleet.Save(1);
  for (uint64_t step = 2; step <= static_cast<uint64_t>(options.slots); ++step) fleet.Hold(step);
  fleet.Lose(std::max(options.copies, options.parity + 1));
  fleet.Restore();
  if (!fleet.runs() || fleet.restored_step() != 1 || fleet.why_skipped().empty()) {
    return Error(ErrorCode::INTERNAL, absl::StrCat("step ", fleet.restored_step(), " was restored, and not step 1"));
  }
  return Ms(fleet.decided_after());
}

absl::StatusOr<Figures> MeasureCoordinator(uint32_t ranks) {
  Figures figures;
  Fleet fleet({.ranks = ranks, .per_agent = kPerNode, .copies = kCopies, .wire = true, .batches = kBatches});
  fleet.Restore();
  if (!fleet.runs()) return Error(ErrorCode::INTERNAL, "the job does not run");
  figures.restore_ms = Ms(fleet.decided_after());
  figures.sent_to_restore = static_cast<double>(fleet.sent_bytes());
  const Nanos cpu = fleet.cpu();
  const uint64_t sent = fleet.sent_bytes();
  const uint64_t received = fleet.received_bytes();
  for (uint64_t step = 1; step <= kSaves; ++step) {
    fleet.Save(step);
    if (fleet.durable() != step) return Error(ErrorCode::INTERNAL, absl::StrCat("step ", step, " is not durable"));
    if (fleet.protected_step() != step)
      return Error(ErrorCode::INTERNAL, absl::StrCat("step ", step, " is not protected"));
    figures.commit_ms = std::max(figures.commit_ms, Ms(fleet.decided_after()));
  }
  CKPTD_ASSIGN_OR_RETURN(const uint64_t memory, OwnMemoryOf(getpid()));
  figures.memory_mib = static_cast<double>(memory) / static_cast<double>(kMiB);
  figures.cpu_ms = Ms(fleet.cpu() - cpu) / kSaves;
  figures.sent = static_cast<double>(fleet.sent_bytes() - sent) / kSaves;
  figures.received = static_cast<double>(fleet.received_bytes() - received) / kSaves;
  return figures;
}

absl::Status MeasureAllLosses(uint32_t ranks, Figures* figures) {
  Fleet::Options options{.ranks = ranks, .per_agent = kPerNode, .wire = true, .slots = kSlots};
  options.copies = kCopies;
  CKPTD_ASSIGN_OR_RETURN(figures->losses_ms, MeasureLosses(options));
  options.copies = 0;
  options.parity = kParity;
  options.data = kData;
  CKPTD_ASSIGN_OR_RETURN(figures->parity_losses_ms, MeasureLosses(options));
  return absl::OkStatus();
}

Line LineOf(const std::string& name, const char* unit, std::string what, const std::vector<Figures>& all,
            double Figures::*value, double limit) {
  std::vector<double> values;
  values.reserve(all.size());
  for (const Figures& figures : all) values.push_back(figures.*value);
  Comparison found;
  found.ours = Summarize(values);
  found.limit = Summarize({limit});
  found.rounds = static_cast<uint32_t>(values.size());
  return Line{name, unit, std::move(what), found};
}

std::string Bytes(double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

absl::Status MeasureNodes(uint32_t nodes, uint32_t rounds, Lines* lines) {
  std::vector<Figures> all;
  for (uint32_t i = 0; i < rounds; ++i) {
    CKPTD_ASSIGN_OR_RETURN(Figures figures, MeasureCoordinator(nodes * kPerNode));
    all.push_back(figures);
  }
  for (Figures& figures : all) CKPTD_RETURN_IF_ERROR(MeasureAllLosses(nodes * kPerNode, &figures));
  const Figures& last = all.back();
  const std::string fleet = absl::StrCat(nodes, " nodes x ", kPerNode, " ranks, copies ", kCopies);
  const auto name = [nodes](const char* what) { return absl::StrCat("coordinator.", nodes, ".", what); };
  lines->push_back(LineOf(name("restore"), "ms",
                          absl::StrCat("the contract; ours: last REPORT to the decision said to all, ", fleet, "; ",
                                       Bytes(last.sent_to_restore), " sent for the whole restore"),
                          all, &Figures::restore_ms, kDecisionMs));
  lines->push_back(LineOf(
      name("losses"), "ms",
      absl::StrCat("the contract; ours: restore of ", fleet, ", both nodes that had a part of ", kSlots, " steps lost"),
      all, &Figures::losses_ms, kDecisionMs));
  lines->push_back(LineOf(name("parity-losses"), "ms",
                          absl::StrCat("the contract; ours: the same with parity ", kData, "+", kParity, ", ",
                                       kParity + 1, " nodes of a group lost"),
                          all, &Figures::parity_losses_ms, kDecisionMs));
  lines->push_back(LineOf(name("commit"), "ms",
                          absl::StrCat("the contract; ours: last REPORT to \"durable\" said to all, ", fleet), all,
                          &Figures::commit_ms, kDecisionMs));
  lines->push_back(LineOf(name("cpu"), "ms",
                          absl::StrCat("1 s; ours: CPU of a save, ", fleet, "; ", Bytes(last.sent), " sent and ",
                                       Bytes(last.received), " received for it"),
                          all, &Figures::cpu_ms, kDecisionMs));
  lines->push_back(LineOf(name("memory"), "MiB",
                          absl::StrCat("the contract; ours: this process with all that is simulated, ", fleet), all,
                          &Figures::memory_mib, kMemoryMiB));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Lines> Coordinator(const Options& options) {
  Lines lines;
  const uint32_t rounds = options.RoundsOr(kRounds);
  if (options.ranks > 1) {
    CKPTD_RETURN_IF_ERROR(MeasureNodes(std::max(options.ranks / kPerNode, kFewestNodes), rounds, &lines));
    return lines;
  }
  CKPTD_RETURN_IF_ERROR(MeasureNodes(64, rounds, &lines));
  CKPTD_RETURN_IF_ERROR(MeasureNodes(1250, rounds, &lines));
  return lines;
}

}  // namespace ckptd::bench
