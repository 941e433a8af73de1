package bpf

//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip -target bpfel,bpfeb -cflags "-O2 -Wall -Werror -mcpu=v3" -type endpoint_key -type endpoint_value -type reject_key -type reject_value hits c/hits.bpf.c
