// ckptctl: see and steer the checkpoints of this node. The commands are in command.cc.
#include <string>
#include <vector>

#include "tools/ckptctl/command.h"

int main(int argc, char** argv) { return ckptd::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc)); }
