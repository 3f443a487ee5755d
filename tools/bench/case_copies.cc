// An image from one agent to another over loopback, by each way the transport has, beside what the machine can do: a
// memcpy of the same bytes, and the programs that measure networks, where they are installed. All of them in turn.
// With --ranks so many parts of it at once, each by a transfer and a connection of its own, as those of a node's ranks.
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/cases.h"
#include "tools/bench/copies_pair.h"
#include "tools/bench/measure.h"
#include "tools/bench/network_limits.h"
#include "tools/bench/program.h"
#include "tools/bench/room.h"
#include "tools/bench/usage.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kChunkBytes = 4 * kMiB;
constexpr uint64_t kReserve = 512 * kMiB;
constexpr char kMemcpy[] = "memcpy of the same bytes between two files of the tmpfs, mapped";

// What is measured in each round, in GB/s.
struct Way {
  std::string name;
  std::string what;
  std::function<absl::StatusOr<double>()> measure;
  std::string missing;  // why it is not measured
  std::vector<double> samples = {};
  std::shared_ptr<std::vector<double>> cpu = nullptr;  // seconds a GB, of each measurement, the first one too
};

absl::StatusOr<Way> OurWay(const char* name, const CopyMemory& memory, const CopiesPairOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CopiesPair> pair, CopiesPair::Make(memory, options));
  const double gigabytes = static_cast<double>(memory.from().size()) / 1e9;
  auto cpu = std::make_shared<std::vector<double>>();
  auto measure = [pair, &memory, gigabytes, cpu]() -> absl::StatusOr<double> {
    memory.Wipe();
    CKPTD_ASSIGN_OR_RETURN(const double before, CpuSecondsOf(getpid()));
    CKPTD_ASSIGN_OR_RETURN(const double seconds, pair->Send());
    CKPTD_ASSIGN_OR_RETURN(const double after, CpuSecondsOf(getpid()));
    cpu->push_back((after - before) / gigabytes);
    if (!memory.Same()) return Error(ErrorCode::CORRUPT, "the copy has other bytes than the image");
    return gigabytes / seconds;
  };
  return Way{name, "", measure, "", {}, cpu};
}

struct OurKind {
  const char* name;
  bool certificates;
  BytesBy by;
};
constexpr OurKind kOurs[] = {{"copies.plain", false, BytesBy::kGrpc},
                             {"copies.tls", true, BytesBy::kGrpc},
                             {"copies.bulk-tls", true, BytesBy::kTls},
                             {"copies.tcp", false, BytesBy::kTcp},
                             {"copies.ucx", false, BytesBy::kUcx}};

// Where UCX is not installed it says so.
absl::StatusOr<std::vector<Way>> OurWays(const CopyMemory& memory, const Options& asked) {
  std::vector<Way> ways;
  for (const OurKind& kind : kOurs) {
    CopiesPairOptions options;
    options.certificates = kind.certificates;
    options.by = kind.by;
    options.chunk_bytes = asked.chunk != 0 ? asked.chunk : kChunkBytes;
    options.ranks = asked.ranks;
    absl::StatusOr<Way> way = OurWay(kind.name, memory, options);
    if (kind.by == BytesBy::kUcx && CodeOf(way.status()) == ErrorCode::REFUSED)
      way = Way{kind.name, "", nullptr, std::string(way.status().message())};
    CKPTD_ASSIGN_OR_RETURN(ways.emplace_back(), std::move(way));
  }
  return ways;
}

std::vector<Way> Limits(const CopyMemory& memory, uint32_t ranks) {
  std::vector<Way> ways;
  ways.push_back({"memcpy", kMemcpy,
                  [&memory]() -> absl::StatusOr<double> {
                    const TimePoint begin = Now();
                    std::memcpy(memory.into().data(), memory.from().data(), memory.from().size());
                    asm volatile("" : : "r"(memory.into().data()) : "memory");
                    return static_cast<double>(memory.from().size()) / 1e9 / SecondsSince(begin);
                  },
                  ""});
  for (const NetworkLimit& limit : kNetworkLimits) {
    const bool there = Installed(limit.program);
    ways.push_back({limit.name, limit.what, [&limit, ranks] { return limit.measure(ranks); },
                    there ? "" : absl::StrCat(limit.program, " is not installed (package ", limit.package, ")")});
  }
  return ways;
}

absl::Status MeasureAll(std::vector<Way>& ways, bool counts) {
  for (Way& way : ways) {
    if (!way.missing.empty()) continue;
    CKPTD_ASSIGN_OR_RETURN(const double sample, way.measure());
    if (counts) way.samples.push_back(sample);
  }
  return absl::OkStatus();
}

Line Compare(const Way& ours, const Way& limit) {
  Line line{absl::StrCat(ours.name, "/", limit.name), "GB/s", limit.what, {}};
  line.skipped = ours.missing.empty() ? limit.missing : ours.missing;
  if (!line.skipped.empty()) return line;
  const Summary cpu = Summarize({ours.cpu->begin() + 1, ours.cpu->end()});
  absl::StrAppendFormat(&line.what, "; ours: %.2f s (%.2f to %.2f) of CPU time a GB, both ends together", cpu.median,
                        cpu.min, cpu.max);
  line.comparison.ours = Summarize(ours.samples);
  line.comparison.limit = Summarize(limit.samples);
  line.comparison.rounds = static_cast<uint32_t>(ours.samples.size());
  return line;
}

}  // namespace

absl::StatusOr<Lines> Copies(const Options& options) {
  const uint64_t bytes = RoundUp(options.bytes != 0 ? options.bytes : kGiB, kPage);
  if (AvailableMemory() / 2 < bytes + kReserve) {
    Line line{"copies", "GB/s", "", {}};
    line.skipped = absl::StrCat("two images of ", FormatBytes(bytes), " do not fit into free memory: --bytes");
    return Lines{line};
  }
  CKPTD_ASSIGN_OR_RETURN(const auto memory, CopyMemory::Make(options, bytes));
  CKPTD_ASSIGN_OR_RETURN(std::vector<Way> ours, OurWays(*memory, options));
  std::vector<Way> limits = Limits(*memory, options.ranks);
  CKPTD_RETURN_IF_ERROR(Repeat(options.RoundsOr(kRounds), [&](bool counts) -> absl::Status {
    CKPTD_RETURN_IF_ERROR(MeasureAll(ours, counts));
    return MeasureAll(limits, counts);
  }));
  Lines lines;
  for (const Way& way : ours) {
    for (const Way& limit : limits) lines.push_back(Compare(way, limit));
  }
  return lines;
}

}  // namespace ckptd::bench
