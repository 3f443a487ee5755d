#include "tools/bench/nodes.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/status_macros.h"

namespace ckptd::bench {
namespace {

constexpr int kPort = 9465;

std::string Address(size_t node) {
  return absl::StrCat("127.", 1 + getpid() / 250 % 250, ".", 1 + getpid() % 250, ".", 10 + node);
}

std::string Name(size_t node) { return absl::StrCat("n", node); }

std::string Members(size_t count) {
  std::vector<std::string> members;
  for (size_t node = 0; node < count; ++node)
    members.push_back(absl::StrCat(Name(node), " address=", Address(node), ":", kPort));
  return absl::StrJoin(members, "; ");
}

}  // namespace

absl::StatusOr<Nodes> Nodes::Make(const Options& options, size_t count, const Protection& protection) {
  Nodes nodes;
  for (size_t node = 0; node < count; ++node) {
    Peering peering{Name(node),        Address(node),  Members(count), node == 0 ? "" : nodes[0].storage(),
                    protection.scheme, protection.bulk};
    CKPTD_ASSIGN_OR_RETURN(nodes.agents_.emplace_back(),
                           Agent::Make(options, Storage::kNothing, Admin::kOff, std::move(peering)));
    CKPTD_RETURN_IF_ERROR(nodes[node].Start().status());
  }
  return nodes;
}

std::vector<std::string> Nodes::sockets() const {
  std::vector<std::string> sockets;
  for (const auto& agent : agents_) sockets.push_back(agent->socket());
  return sockets;
}

absl::Status Nodes::Replace(size_t node) const {
  agents_[node]->Kill();
  agents_[node]->LoseRegion();
  return agents_[node]->Start().status();
}

}  // namespace ckptd::bench
