#include "tests/integration/cluster.h"

namespace ckptd::harness {
namespace {

// A loopback network of this process' own: tests run side by side.
std::string Network() {
  const auto pid = static_cast<unsigned>(getpid());
  return "127." + std::to_string(1 + pid / 250 % 250) + "." + std::to_string(1 + pid % 250) + ".";
}

}  // namespace

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

std::string Cluster::NameOf(size_t number) { return std::string("node-") + static_cast<char>('a' + number); }

std::string Cluster::AddressOf(size_t number) const { return address_ ? address_(number) : LoopbackOf(number); }

std::string Cluster::LoopbackOf(size_t number) { return Network() + std::to_string(10 + number); }

Cluster::Cluster(const ClusterOptions& options) : address_(options.address) {
  char name[] = "/tmp/ckptd-nodes-XXXXXX";
  dir_ = mkdtemp(name);
  chmod(dir_.c_str(), 0755);
  std::string members;
  for (size_t i = 0; i < options.nodes; ++i)
    members += (i == 0 ? "" : "; ") + NameOf(i) + " address=" + AddressOf(i) + ":9465";
  for (size_t i = 0; i < options.nodes; ++i) {
    NodeOptions node;
    node.storage = dir_ + "/storage";
    if (options.prefix) node.agent_prefix = options.prefix(i);
    node.settings = {{"agent.node_name", Quoted(NameOf(i))},
                     {"agent.admin_socket", Quoted(Admin(i))},
                     {"peers.members", Quoted(members)},
                     {"peers.address", Quoted(AddressOf(i))},
                     {"peers.tls", Quoted("plaintext-on-loopback")}};
    for (const auto& [key, value] : options.settings) node.settings[key] = value;
    if (options.more) {
      for (const auto& [key, value] : options.more(i)) node.settings[key] = value;
    }
    nodes_.push_back(std::make_unique<Node>(node));
  }
}

Cluster::~Cluster() {
  nodes_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

bool Cluster::Start() {
  for (const auto& node : nodes_) {
    if (!node->StartAgent()) return false;
  }
  return true;
}

std::string Cluster::Logs() const {
  std::string logs;
  for (size_t i = 0; i < nodes_.size(); ++i) logs += "--- " + NameOf(i) + "\n" + nodes_[i]->AgentLog();
  return logs;
}

std::vector<std::unique_ptr<Child>> Cluster::Train(const std::vector<size_t>& where, const std::string& line) {
  std::vector<std::unique_ptr<Child>> ranks;
  for (size_t rank = 0; rank < where.size(); ++rank) {
    ranks.push_back(nodes_[where[rank]]->Train(
        Args("--world " + std::to_string(where.size()) + " --rank " + std::to_string(rank) + " " + line)));
  }
  return ranks;
}

Said Cluster::Ctl(size_t number, const std::string& line) {
  std::vector<std::string> argv = {BinaryDirectory() + "/ckptctl"};
  for (const std::string& word : Args(line)) argv.push_back(word);
  Child child({argv, {"CKPTD_ADMIN_SOCKET=" + Admin(number), "NO_COLOR=1"}, dir_ + "/stderr"});
  Said said;
  said.code = child.Wait();
  for (const std::string& each : child.lines()) said.out += each + "\n";
  return said;
}

Said Cluster::AwaitStatus(size_t number, const std::function<bool(const Said&)>& said_so) {
  Said said = Ctl(number, "status");
  for (int i = 0; i < 300 && !said_so(said); ++i) {
    usleep(100'000);
    said = Ctl(number, "status");
  }
  return said;
}

}  // namespace ckptd::harness
