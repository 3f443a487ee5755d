#include "tools/bench/network_limits.h"

#include <chrono>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/program.h"

namespace ckptd::bench {
namespace {

using std::chrono::seconds;

constexpr char kHere[] = "127.0.0.1";
constexpr seconds kPatience{60};

absl::Status Unreadable(const char* program, absl::string_view text) {
  return Error(ErrorCode::INTERNAL, absl::StrCat(program, " printed something else: ", text.substr(0, 200)));
}

absl::StatusOr<double> MeasureUcx(const std::vector<std::string>& environment) {
  CKPTD_ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string at = absl::StrCat(port);
  CKPTD_ASSIGN_OR_RETURN(const auto server, Program::Start({"stdbuf", "-oL", kUcxPerf, "-p", at}, environment));
  CKPTD_RETURN_IF_ERROR(server->Await("Waiting for connection", kPatience));
  CKPTD_ASSIGN_OR_RETURN(const auto client, Program::Start({kUcxPerf, kHere, "-p", at, "-t", "tag_bw", "-s", "1048576",
                                                            "-n", "1000", "-w", "50", "-E", "sleep"},
                                                           environment));
  CKPTD_ASSIGN_OR_RETURN(const std::string table, client->Finish(kPatience));
  return ParseUcxPerf(table);
}

}  // namespace

absl::StatusOr<double> MeasureIperf(uint32_t streams) {
  CKPTD_ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string at = absl::StrCat(port);
  CKPTD_ASSIGN_OR_RETURN(const auto server,
                         Program::Start({kIperf, "-s", "-1", "--forceflush", "-B", kHere, "-p", at}));
  CKPTD_RETURN_IF_ERROR(server->Await("Server listening", kPatience));
  CKPTD_ASSIGN_OR_RETURN(const auto client,
                         Program::Start({kIperf, "-c", kHere, "-p", at, "-t", "1", "-P", absl::StrCat(streams), "-J"}));
  CKPTD_ASSIGN_OR_RETURN(const std::string json, client->Finish(kPatience));
  return ParseIperf(json);
}

absl::StatusOr<double> MeasureUcxTcp(uint32_t) { return MeasureUcx({"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"}); }
absl::StatusOr<double> MeasureUcxShared(uint32_t) { return MeasureUcx({"UCX_TLS=all"}); }

absl::StatusOr<double> ParseIperf(absl::string_view json) {
  constexpr absl::string_view kKey = "\"bits_per_second\":";
  const size_t sum = json.rfind("\"sum_received\"");
  const size_t key = sum == absl::string_view::npos ? sum : json.find(kKey, sum);
  if (key == absl::string_view::npos) return Unreadable(kIperf, json);
  const std::vector<absl::string_view> parts =
      absl::StrSplit(json.substr(key + kKey.size()), absl::MaxSplits(absl::ByAnyChar(",}"), 1));
  double bits = 0;
  if (!absl::SimpleAtod(parts[0], &bits) || !(bits > 0)) return Unreadable(kIperf, json.substr(key));
  return bits / 8e9;
}

// "Final:  iterations  3 times in us  2 bandwidths in MiB/s  2 rates": average, and over all.
absl::StatusOr<double> ParseUcxPerf(absl::string_view table) {
  constexpr absl::string_view kFinal = "Final:";
  const size_t begin = table.rfind(kFinal);
  if (begin == absl::string_view::npos) return Unreadable(kUcxPerf, table);
  const std::vector<absl::string_view> words =
      absl::StrSplit(table.substr(begin + kFinal.size()), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double mebibytes = 0;
  if (words.size() < 6 || !absl::SimpleAtod(words[5], &mebibytes) || !(mebibytes > 0))
    return Unreadable(kUcxPerf, table.substr(begin));
  return mebibytes * static_cast<double>(kMiB) / 1e9;
}

}  // namespace ckptd::bench
