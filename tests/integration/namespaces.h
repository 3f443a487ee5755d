// A network for nodes, of network namespaces on this machine: each node has one, with an address of its own behind a
// bridge that lies in a namespace too. Nothing of this machine's own network is touched. What is cut, slowed down or
// lost is what the kernel does with packets (iptables, tc), as seen by unmodified agents. Needs root.
#ifndef CKPTD_TESTS_INTEGRATION_NAMESPACES_H_
#define CKPTD_TESTS_INTEGRATION_NAMESPACES_H_

#include <string>
#include <vector>

namespace ckptd::harness {

class Namespaces {
 public:
  // Makes them, or says why it cannot.
  explicit Namespaces(size_t nodes);
  // They are gone, with whatever still runs in them.
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  [[nodiscard]] const std::string& why_not() const { return why_not_; }  // "" = all is there
  [[nodiscard]] static std::string AddressOf(size_t number);
  [[nodiscard]] std::vector<std::string> Prefix(size_t number) const;
  // A command line, split at spaces, on that node; false when it fails.
  [[nodiscard]] bool On(size_t number, const std::string& line);

 private:
  [[nodiscard]] std::string Name(const std::string& part) const;
  [[nodiscard]] bool Run(const std::string& line);
  void Add(size_t number);

  std::string why_not_;
  std::vector<std::string> names_;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_NAMESPACES_H_
