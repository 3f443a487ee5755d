#include "daemon/job/who_has.h"

#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {
namespace {

// A snapshot that one part names twice is there once.
template <typename Part, typename Refs>
void Add(const Said<Part>& said, const Refs& refs, std::vector<Said<Part>> Had::*where, HadBySnapshot* out) {
  for (const v1::SnapshotRef& ref : refs) {
    std::vector<Said<Part>>& all = (*out)[ToId(ref)].*where;
    if (all.empty() || all.back() != said) all.push_back(said);
  }
}

void AddReport(const std::string& agent, const v1::Report& report, HadBySnapshot* out) {
  for (const v1::RankReport& rank : report.ranks()) Add({&rank, &agent}, rank.sealed(), &Had::sealed, out);
  for (const v1::HeldCopies& held : report.copies()) Add({&held, &agent}, held.complete(), &Had::copies, out);
  for (const v1::HeldParity& held : report.parity()) Add({&held, &agent}, held.complete(), &Had::parity, out);
}

}  // namespace

HadBySnapshot WhoHasWhat(const std::map<std::string, ReportPtr>& reports,
                         const std::function<bool(const std::string& agent)>& counts) {
  HadBySnapshot out;
  for (const auto& [agent, report] : reports) {
    if (counts(agent)) AddReport(agent, *report, &out);
  }
  return out;
}

}  // namespace ckptd::job
