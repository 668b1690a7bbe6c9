# What the command printed, out of the guest's console: the lines between @@BEGIN and @@END, as they come.
# The line end that guest_init puts before @@END, for commands whose last line has none, is no empty line of theirs.
s/\r//g
/^@@FAILED/p
/^@@BEGIN/!d

:next
n
s/\r//g
:look
/^@@END/b over
/^\n*$/ {
    N
    s/\r//g
    /\n@@END/!b look
    s/\n\n@@END.*//p
    b over
}
p
b next

:over
n
b over
