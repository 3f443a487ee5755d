// Only with CKPTD_GRPC: what ckptctl asks, as it asks it.
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/echo.h"
#include "tools/bench/job.h"
#include "tools/bench/measure.h"
#include "tools/ckptctl/client.h"

namespace ckptd::bench {
namespace {

constexpr int kRequests = 500;  // of one measurement, each after the answer of the one before

absl::StatusOr<double> PerSecond(const std::function<absl::Status()>& request) {
  TimePoint begin = Now();
  for (int i = 0; i < kRequests; ++i) CKPTD_RETURN_IF_ERROR(request());
  return kRequests / SecondsSince(begin);
}

// On a starved machine gRPC gives a call's place back later than the next 64 calls come: asked again, as the error
// says.
absl::Status Ask(Client& client, const v1::StatusRequest& request) {
  for (;; std::this_thread::yield()) {
    absl::Status asked = client.Status(request).status();
    if (CodeOf(asked) != ErrorCode::BUSY) return asked;
  }
}

}  // namespace

absl::StatusOr<Line> ControlStatus(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kNothing, Admin::kOn));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  Job job(agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : kMiB,
          options.tensors != 0 ? options.tensors : 1000);
  CKPTD_RETURN_IF_ERROR(job.Warm(CKPT_CAPTURED));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(std::vector<std::string>{agent->admin_socket()}));
  const v1::StatusRequest request;  // all jobs
  CKPTD_ASSIGN_OR_RETURN(v1::StatusView view, client->Status(request));
  if (view.jobs_size() != 1) return Error(ErrorCode::INTERNAL, "the agent tells of another number of jobs than one");
  CKPTD_ASSIGN_OR_RETURN(auto echo, Echo::Make(request.ByteSizeLong(), view.ByteSizeLong()));
  auto ours = [&] { return PerSecond([&] { return Ask(*client, request); }); };
  auto limit = [&] { return PerSecond([&] { return echo->RoundTrip(); }); };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{
      "control.status", "1/s",
      absl::StrCat("round trips between two threads over a UNIX socket, answers of ", view.ByteSizeLong(),
                   " bytes; ours: Status of ckptctl's client, gRPC, one connection, one job, --ranks ", job.ranks()),
      found};
}

}  // namespace ckptd::bench
