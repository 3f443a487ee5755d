#include "tests/integration/namespaces.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/integration/harness.h"

namespace ckptd::harness {

Namespaces::Namespaces(size_t nodes) {
  if (geteuid() != 0) {
    why_not_ = "network namespaces need root";
    return;
  }
  for (const char* tool : {"ip", "tc", "iptables"}) {
    if (!Run(std::string("which ") + tool))
      why_not_ += std::string(why_not_.empty() ? "" : ", ") + "there is no " + tool;
  }
  if (!why_not_.empty()) return;
  names_.push_back(Name("net"));
  if (!Run("ip netns add " + names_[0]) || !Run("ip -n " + names_[0] + " link add bridge type bridge") ||
      !Run("ip -n " + names_[0] + " link set bridge up")) {
    why_not_ = "network namespaces do not work here";
    return;
  }
  for (size_t i = 0; i < nodes && why_not_.empty(); ++i) Add(i);
}

Namespaces::~Namespaces() {
  for (const std::string& name : names_) {
    Child pids({{"ip", "netns", "pids", name}, {}, "/dev/null"});
    (void)pids.Wait();
    for (const std::string& line : pids.lines()) {
      const long pid = std::strtol(line.c_str(), nullptr, 10);
      if (pid > 0) kill(static_cast<pid_t>(pid), SIGKILL);  // 0 would be all of us
    }
    (void)Run("ip netns del " + name);
  }
}

std::string Namespaces::Name(const std::string& part) const {
  return "ckptd-it-" + std::to_string(getpid()) + "-" + part;
}

std::string Namespaces::AddressOf(size_t number) { return "10.98.0." + std::to_string(10 + number); }

std::vector<std::string> Namespaces::Prefix(size_t number) const {
  return {"ip", "netns", "exec", Name(std::to_string(number))};
}

bool Namespaces::Run(const std::string& line) {
  Child child({Args(line), {}, "/dev/null"});
  return child.Wait() == 0;
}

bool Namespaces::On(size_t number, const std::string& line) {
  return Run("ip netns exec " + Name(std::to_string(number)) + " " + line);
}

void Namespaces::Add(size_t number) {
  const std::string name = Name(std::to_string(number));
  const std::string end = "n" + std::to_string(number);
  names_.push_back(name);
  const bool made = Run("ip netns add " + name) &&
                    Run("ip -n " + names_[0] + " link add " + end + " type veth peer name eth0 netns " + name) &&
                    Run("ip -n " + names_[0] + " link set " + end + " master bridge up") &&
                    Run("ip -n " + name + " address add " + AddressOf(number) + "/24 dev eth0") &&
                    Run("ip -n " + name + " link set lo up") && Run("ip -n " + name + " link set eth0 up");
  if (!made) why_not_ = "cannot wire " + name;
}

}  // namespace ckptd::harness
