# Warnings for our own host code; GPU code is checked by ptxas (tools/check_gpu_code.py).
add_library(flashrel_warnings INTERFACE)
target_compile_options(flashrel_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>)
