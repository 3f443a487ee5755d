// Several nodes on this machine whose agents speak to each other over real sockets, each at a loopback address of its
// own, with one storage. Names are node-a, node-b and so on.
#ifndef CKPTD_TESTS_INTEGRATION_CLUSTER_H_
#define CKPTD_TESTS_INTEGRATION_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/ctl_fixture.h"

namespace ckptd::harness {

struct ClusterOptions {
  size_t nodes = 2;
  std::map<std::string, std::string> settings;  // of every node
  // More for one node; what is in `settings` gives way.
  std::function<std::map<std::string, std::string>(size_t number)> more;
  // Another network than loopback: the address of each node, and what its agent's command line begins with.
  std::function<std::string(size_t number)> address = nullptr;
  std::function<std::vector<std::string>(size_t number)> prefix = nullptr;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // All of them. False: one did not start; see Logs().
  [[nodiscard]] bool Start();
  [[nodiscard]] Node& node(size_t number) { return *nodes_[number]; }
  [[nodiscard]] size_t size() const { return nodes_.size(); }
  [[nodiscard]] static std::string NameOf(size_t number);
  [[nodiscard]] std::string AddressOf(size_t number) const;    // without a port
  [[nodiscard]] static std::string LoopbackOf(size_t number);  // where options.address is not given
  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] std::string Logs() const;

  // Rank i of as many as there are entries runs on node where[i].
  std::vector<std::unique_ptr<Child>> Train(const std::vector<size_t>& where, const std::string& line);
  [[nodiscard]] Said Ctl(size_t number, const std::string& line);
  // Asks for the status until it says so, for 30 s at most; what was said last.
  [[nodiscard]] Said AwaitStatus(size_t number, const std::function<bool(const Said&)>& said_so);

 private:
  [[nodiscard]] std::string Admin(size_t number) const { return dir_ + "/admin-" + std::to_string(number); }

  const std::function<std::string(size_t number)> address_;
  std::string dir_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

[[nodiscard]] std::string Quoted(const std::string& text);

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_CLUSTER_H_
