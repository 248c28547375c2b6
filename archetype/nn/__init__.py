"""What every module of a part is given and uses: the context of a pass, states, dropout, convolutions and chunks."""
