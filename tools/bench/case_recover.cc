// A restore on a node that was lost and came back empty: what it had is read from other nodes, all of them on this
// machine and its loopback. Where a link is to be the limit, not two cores that have both its ends, run it in a network
// of its own:
//
//   unshare -n sh -c 'ip link set lo up; tc qdisc add dev lo root tbf rate 10gbit burst 4mb latency 50ms;
//                     ckptd-bench restore.replica restore.parity'
#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/measure.h"
#include "tools/bench/network_limits.h"
#include "tools/bench/nodes.h"
#include "tools/bench/program.h"

namespace ckptd::bench {
namespace {

// One rank on the last node, or on each.
struct Loss {
  const char* name;
  size_t nodes;
  const char* scheme;  // peers.copies, or parity and data
  bool rank_on_each;
  uint32_t source;   // what its last rank has to be restored from
  uint32_t read;     // bytes that its node receives for each byte of its image
  uint64_t bytes;    // of one rank
  const char* what;  // is measured
};

constexpr Loss kReplica = {"restore.replica",
                           2,
                           "copies = 2",
                           false,
                           kFromReplica,
                           1,
                           kGiB,
                           "bytes of the image that the other node has, from ckpt_restore_begin to ckpt_restore_end"};
// Each stripe lacks one block of four, which takes the three others.
constexpr Loss kParity = {"restore.parity",
                          4,
                          "parity = 1\ndata = 3",
                          true,
                          kFromParity,
                          3,
                          512 * kMiB,
                          "bytes that the node receives, three times the image that is rebuilt, likewise; the ranks of "
                          "the other nodes restore from their memory meanwhile"};

std::unique_ptr<Job> MakeJob(const Options& options, const Loss& loss, const Nodes& nodes) {
  std::vector<std::string> sockets = nodes.sockets();
  if (!loss.rank_on_each) sockets.erase(sockets.begin(), sockets.end() - 1);
  return std::make_unique<Job>(std::move(sockets), options.bytes != 0 ? options.bytes : loss.bytes,
                               options.tensors != 0 ? options.tensors : 1000);
}

// GB/s that the lost node receives.
absl::StatusOr<double> LoseAndRestore(const Loss& loss, const Nodes& nodes, Job& job) {
  job.Close();
  CKPTD_RETURN_IF_ERROR(nodes.Replace(loss.nodes - 1));
  uint32_t source = 0;
  CKPTD_ASSIGN_OR_RETURN(const double seconds, job.Restore(&source));
  if (source != loss.source)
    return Error(ErrorCode::INTERNAL, absl::StrCat("restored from source ", source, " instead of ", loss.source));
  const uint64_t received = loss.read * (job.total_bytes() / job.ranks());
  return static_cast<double>(received) / 1e9 / seconds;
}

absl::StatusOr<Line> RestoredBy(const Options& options, const Loss& loss, const Bulk& by) {
  const std::string name = absl::StrCat(loss.name, by.added);
  if (!Installed(kIperf)) return Line{name, "", "", {}, absl::StrCat(kIperf, " is not installed (package iperf3)")};
  CKPTD_ASSIGN_OR_RETURN(const Nodes nodes, Nodes::Make(options, loss.nodes, {loss.scheme, by.bulk}));
  const std::unique_ptr<Job> job = MakeJob(options, loss, nodes);
  CKPTD_RETURN_IF_ERROR(job->Warm(CKPT_PROTECTED));
  CKPTD_ASSIGN_OR_RETURN(Comparison found,
                         Alternate(
                             options.RoundsOr(kRounds), [&] { return LoseAndRestore(loss, nodes, *job); },
                             [] { return MeasureIperf(1); }));
  return Line{name, "GB/s", absl::StrCat("iperf3, one TCP stream over loopback; ours: ", loss.what), found};
}

absl::StatusOr<Lines> EachWay(const Options& options, const Loss& loss) {
  Lines lines;
  for (const Bulk& by : kBulks) {
    CKPTD_ASSIGN_OR_RETURN(lines.emplace_back(), RestoredBy(options, loss, by));
  }
  return lines;
}

}  // namespace

absl::StatusOr<Lines> RestoreReplica(const Options& options) { return EachWay(options, kReplica); }

absl::StatusOr<Lines> RestoreParity(const Options& options) { return EachWay(options, kParity); }

}  // namespace ckptd::bench
